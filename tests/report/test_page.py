import json
import re
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from wattsmith.cli import app
from wattsmith.flows.report_analysis import write_page
from wattsmith.report.analysis_claims import Claim
from wattsmith.report.page import DERIVED, Table, claims_table, make_page
from wattsmith.terms.errors import BadInput, NotWritten

HEAD = (
    "version,division,submitter,system,system_name,model,scenario,window_s,samples,avg_w,metric,metric_unit,"
    "samples_per_joule,accelerator,accelerators_per_node\n"
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "runs.csv"
    rows = [
        f"{name},closed,Us,box{count},Box <b>&{count},{model},Offline,"
        f"600.0,600,{count}00.0,100.0,W,{each},GPU,{count}\n"
        for name in ("v3.0", "v4.0")
        for count in (1, 2)
        for model, each in (("bert-99", 4.0), ("bert-99.9", 2.0))
    ]
    path.write_text(HEAD + "".join(rows))
    return path


@pytest.fixture(scope="module")
def written(table):
    return write_page(table, table.parent / "out" / "page.html")


class Tags(HTMLParser):
    """Collects what is opened and closed, and every address."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.ids = [], [], []

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.addresses += [named[key] for key in ("src", "href", "xlink:href") if key in named]
        self.ids += [named["id"]] if "id" in named else []
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_one_file_that_fetches_nothing(written):
    text = written.page.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert {address[0] for address in tags.addresses} == {"#"}
    assert {address[1:] for address in tags.addresses} <= set(tags.ids)
    assert len(tags.ids) == len(set(tags.ids))
    assert "<script" not in text
    assert "@import" not in text
    assert re.search(r"url\((?!#)", text) is None


def test_pictures_and_tables_lie_beside_it(written):
    folder = written.page.parent
    names = {path.name for path in written.beside}
    assert {"page_trends.png", "page_scaling.png", "page_accuracy.png", "page_rounds.csv", "page_claims.csv"} <= names
    assert all(path.stat().st_size > 0 for path in written.beside)
    assert (folder / "page_trends.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "page_rounds.csv").read_text().splitlines()[1] == "v3.0,4,2,4,2"


def test_it_says_that_efficiency_is_derived_and_escapes_names(written):
    text = written.page.read_text()
    assert DERIVED[:60] in text
    assert "Box &lt;b&gt;&amp;1" in text
    assert "<b>&" not in text


def test_where_a_figure_does_not_repeat_both_numbers_stand_there():
    claim = Claim(
        topic="t", text="gain", said_by="paper", said=100.0, unit="×", ours=1.73, repeats=False, why="units were mixed"
    )
    page = make_page((), [claim], title="T", source="s")
    assert '<td class="n">100</td><td class="n">1.73</td>' in page.html
    assert "units were mixed" in page.html
    assert claims_table([claim]).csv().splitlines()[1] == "t,gain,paper,100.0,1.73,×,differs,units were mixed"


def test_a_page_of_nothing_is_still_a_page():
    assert make_page((), title="T", source="s").html.startswith("<!doctype html>")


def test_the_same_results_give_the_same_page(table, written, tmp_path):
    assert write_page(table, tmp_path / "two.html").page.read_text() == written.page.read_text()


def test_unknown_is_said_and_an_empty_cell():
    table = Table(name="n", title="t", head=("a",), rows=((None,),))
    assert "unknown" in table.html()
    assert table.csv() == "a\n\n" or table.csv() == 'a\n""\n'


def test_the_commands_summarise_and_page(table, tmp_path):
    summarised = CliRunner().invoke(app, ["report", "summarise", str(table)])
    assert summarised.exit_code == 0, summarised.output
    assert "8 results from runs.csv" in summarised.output
    plain = json.loads(CliRunner().invoke(app, ["report", "summarise", str(table), "--json"]).output)
    assert [one["name"] for one in plain["tables"]][:2] == ["rounds", "trends"]
    done = CliRunner().invoke(app, ["report", "page", str(table), str(tmp_path / "p.html"), "--title", "Mine"])
    assert done.exit_code == 0, done.output
    assert "<title>Mine</title>" in (tmp_path / "p.html").read_text()


def test_a_page_that_cannot_be_written_is_named(table, tmp_path):
    with pytest.raises(BadInput, match=r"ends in \.html"):
        write_page(table, tmp_path / "page.pdf")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritten):
        write_page(table, tmp_path / "file" / "page.html")
