"""The HTML of every page: with nothing to show, with one machine, with a thousand; to each role; with hostile names."""

import re
import statistics
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.serve.page_facts import add_client, add_plan, job, report, showing, submit, token_of
from tests.serve.serving_here import serving

from wattsmith.serve.access import COOKIE
from wattsmith.serve.page import page
from wattsmith.serve.page.page import _local, _whole_characters, without_control
from wattsmith.terms.service import JobState
from wattsmith.terms.telemetry import Fingerprint, Match
from wattsmith.terms.work_schedule import WorkSchedule

FREE = {"rate_hz": 1e6, "burst": 1e6}
PAGES = ("/", "/jobs", "/machines", "/record", "/matches", "/plan")
ADMINS = ("/tokens", "/audit")
HOSTILE = "<img src=x onerror=alert(1)>"
VOID = {"meta", "link", "img", "input", "br", "hr", "col"}


class Reader(HTMLParser):
    """Holds a page to what a browser need not guess: tags that close, ids that are there once, nothing inline."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.wrong, self.links = [], [], [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if tag == "a" else []
        self.wrong += [f"<{tag} {name}>" for name in given if name == "style" or name.startswith("on")]
        if tag == "script" and "src" not in given:
            self.wrong.append("an inline script")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.wrong.append(f"</{tag}> closes <{self.open[-1] if self.open else 'nothing'}>")
        else:
            self.open.pop()


def check(text):
    reader = Reader()
    reader.feed(text)
    assert reader.wrong == []
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    return reader


def see(here, path, role="read", status=200):
    """The text of a page, once its HTML was found to be sound."""
    answer = here.client.get(path, headers={"Authorization": f"Bearer {here.tokens[role]}"}, follow_redirects=False)
    assert answer.status_code == status, answer.text[:2000]
    check(answer.text)
    return answer.text


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("bare"), **FREE) as here:
        yield here


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """One machine, some jobs, a plan, a record."""
    with showing(tmp_path_factory.mktemp("page")) as here:
        add_client(here, "rack-1")
        here.jobs = [submit(here, "bert", 0.0), submit(here, "vit"), submit(here, "unet", role="admin")]
        here.plan = add_plan(here)
        deadline_s = time.monotonic() + 30
        while not here.service.job(here.jobs[0]).state.is_over and time.monotonic() < deadline_s:
            time.sleep(0.1)
        yield here


# Nothing to show


@pytest.mark.parametrize("path", PAGES)
def test_an_empty_service_has_every_page(bare, path):
    assert "<h1" in see(bare, path)


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/", "wattsmith submit"),
        ("/jobs", "wattsmith submit"),
        ("/machines", "wattsmith agent"),
        ("/record", "wattsmith record run"),
        ("/matches", "wattsmith match"),
    ],
)
def test_an_empty_page_says_what_to_do_next(tmp_path, path, command):
    with serving(tmp_path, **FREE) as here:
        assert command in see(here, path)


def test_power_that_nobody_measures_is_unknown(bare):
    if bare.service.pool()["power_w"] is not None:
        pytest.skip("POWER THAT IS NOT KNOWN IS NOT TRIED: this machine has a meter")
    assert "unknown" in see(bare, "/")


# Something to show


@pytest.mark.parametrize("path", PAGES)
def test_every_page_and_its_part_show_the_same(here, path):
    part = see(here, f"/page/fragment{path}")
    assert "<html" not in part
    heads = re.findall(r"<h[23][^>]*>([^<]+)", part)
    whole = see(here, path)
    assert all(head in whole for head in heads)


def test_no_link_of_a_page_leads_nowhere(here):
    seen, left = set(), ["/"]
    while left:
        path = left.pop()
        if path in seen or not path.startswith("/") or len(seen) > 60:
            continue
        seen.add(path)
        found = check(see(here, path, "admin")).links
        left += [link if link.startswith("/") else path.partition("?")[0] + link for link in found if link[:1] in "/?"]
    assert {*PAGES, *ADMINS, f"/jobs/{here.jobs[0]}", "/machines/rack-1", f"/plans/{here.plan}"} <= seen


def test_a_job_shows_predicted_beside_measured(here):
    text = see(here, f"/jobs/{here.jobs[0]}")
    assert "50 s" in text  # 1000 steps of 50 ms
    assert "15 kJ" in text  # at 300 W
    assert "Attempts" in text
    assert 'class="beside"' in text


def test_a_log_is_read_in_pieces(here):
    ask = {"Authorization": f"Bearer {here.tokens['read']}"}
    first = here.client.get(f"/page/log/{here.jobs[0]}", headers=ask)
    assert first.text == "bert begins\n"
    rest = here.client.get(f"/page/log/{here.jobs[0]}?offset={first.headers['x-next-offset']}", headers=ask)
    assert rest.text == ""
    assert here.client.get(f"/page/log/{here.jobs[0]}").status_code == 401


def test_a_machine_shows_its_telemetry_and_is_marked_simulated(here):
    text = see(here, "/machines/rack-1")
    assert text.count('class="chart"') == 4
    assert "its agent does not tell" in text  # the temperature
    assert "simulated" in text
    assert "NVIDIA L40S" in text


def test_a_schedule_that_the_machine_does_not_follow_is_told_of(here):
    now_s = here.service.now_s()
    given = WorkSchedule(
        client="rack-1",
        issued_s=now_s,
        valid_from_s=now_s,
        valid_until_s=now_s + 600,
        serial=0,
        devices=(),
        works=(),
    )
    here.service.put_schedule("rack-1", given, token_of(here, "admin"))
    assert "has not said that it follows it" in see(here, "/machines/rack-1")


def test_the_record_shows_families_and_coverage(here):
    text = see(here, "/record")
    assert "cnn" in text
    assert 'class="cell' in text
    assert "batch 8" in text
    assert "mlp" not in see(here, "/record?family=cnn").partition("Newest runs")[2]


def test_a_plan_is_a_timeline_below_its_budget(here):
    text = see(here, f"/plans/{here.plan}")
    assert "budget 1 kW" in text
    assert text.count('class="piece') >= 3


def test_a_page_that_is_not_there_says_so(here):
    assert "There is no such thing" in see(here, "/jobs/j-999999", status=404)
    assert "There is no such thing" in see(here, "/machines/nobody", status=404)


@pytest.mark.parametrize("query", ["?from=-1", "?from=x", "?page=9999999999999", "?sort=%00", "?span=1y", "?state=<b>"])
@pytest.mark.parametrize("path", [*PAGES, "/machines/rack-1"])
def test_a_query_that_makes_no_sense_is_passed_over(here, path, query):
    see(here, path + query)


# Roles


def test_who_has_no_token_is_asked_for_one(bare):
    answer = bare.client.get("/jobs?state=done", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/jobs%3Fstate%3Ddone")
    assert bare.client.get("/page/fragment/jobs").status_code == 401


def test_a_revoked_token_says_so_at_the_login(tmp_path):
    with serving(tmp_path, **FREE) as here:
        here.revoke("read")
        answer = here.client.get("/login", headers={"Cookie": f"{COOKIE}={here.tokens['read']}"})
        assert "This token was revoked at" in answer.text


def test_an_agent_sees_no_page(bare):
    assert "This page is for the role read" in see(bare, "/", "agent", 403)


@pytest.mark.parametrize("path", ADMINS)
def test_tokens_and_the_audit_log_are_for_admins(here, path):
    see(here, path, "admin")
    for role in ("read", "submit"):
        assert "This page is for the role admin" in see(here, path, role, 403)
        assert f'href="{path}"' not in see(here, "/", role)


def test_no_secret_is_on_any_page(here):
    for path in (*PAGES, *ADMINS):
        text = see(here, path, "admin")
        assert not any(secret.rpartition("_")[2] in text for secret in here.tokens.values())


def test_only_who_may_is_shown_a_way_to_cancel(here):
    _, mine, admins = here.jobs
    assert here.service.job(mine).state in (JobState.RUNNING, JobState.STARTING, JobState.WAITING)
    shown = {
        (role, job): "Cancel this job" in see(here, f"/jobs/{job}", role)
        for role in ("read", "submit", "admin")
        for job in (mine, admins)
    }
    assert [who for who, there in shown.items() if there] == [("submit", mine), ("admin", mine), ("admin", admins)]


def test_only_admins_are_shown_a_way_to_change_the_budget(here):
    assert "Change the budget" in see(here, "/", "admin")
    assert "Change the budget" not in see(here, "/", "submit")


def test_only_who_submits_is_shown_a_way_to_plan_and_match(here):
    assert "Make a plan" in see(here, "/plan", "submit")
    assert "Make a plan" not in see(here, "/plan", "read")
    assert "Match now" not in see(here, "/machines/rack-1", "read")


# A thousand machines


def test_a_thousand_machines_are_searched_sorted_and_paged_quickly(tmp_path, record_property):
    with serving(tmp_path, **FREE) as here:
        by, now_s = token_of(here, "admin"), here.service.now_s()
        for place in range(1000):
            sent = [report(number, now_s, 100.0 + place) for number in range(1, 4)]
            here.service.keep_reports(f"edge-{place}", sent, by)
        times_s = []
        for _ in range(5):
            began_s = time.process_time()
            text = see(here, "/machines")
            times_s.append(time.process_time() - began_s)
        print(f"\n/machines with 1,000 clients: {statistics.median(times_s):.3f} s")  # noqa: T201
        record_property("machines_s", statistics.median(times_s))
        assert statistics.median(times_s) < 0.5
        assert len(text) < 300_000
        assert "1 to 50 of 1,0" in text
        assert text.index(">edge-2<") < text.index(">edge-10<")
        assert ">edge-999<" in see(here, "/machines?sort=power")
        found = see(here, "/machines?q=edge-77")
        assert "1 to 11 of 11" in found
        assert ">edge-950<" in see(here, "/machines?page=19")


# What strangers write


def test_hostile_names_are_shown_as_they_are_and_do_nothing(here):
    by = token_of(here, "admin")
    told = job("hostile", 0.0, environment={"X": HOSTILE})
    told["command"] = ["python", "-c", f"print({HOSTILE!r})"]
    kept = here.service.submit(told, files={}, structure=None, once=None, by=by)
    text = see(here, f"/jobs/{kept.id}")
    assert HOSTILE not in text
    assert "&lt;img src=x" in text
    assert HOSTILE not in see(here, f"/machines?q={HOSTILE}")
    assert HOSTILE not in see(here, f"/record?family={HOSTILE}&device={HOSTILE}")


def test_times_that_no_calendar_has_are_shown_at_its_end(tmp_path):
    with serving(tmp_path, **FREE) as here:
        for number, time_s in enumerate((1e15, -1e15, 1e308, 5.0), 1):
            here.service.keep_reports("rack-1", [report(number, time_s, 300.0)])
        far = {"client": "rack-1", "issued_s": 1e18, "valid_from_s": 0.0, "valid_until_s": 1e18, "serial": 0}
        here.service.put_schedule("rack-1", WorkSchedule(devices=(), works=(), **far), token_of(here, "admin"))
        assert "9999-12-31" in see(here, "/machines/rack-1")
        for path in ("/", "/machines", "/machines/rack-1?span=24h"):
            see(here, path)


def test_a_match_with_hostile_words_is_escaped():
    environment = page._templates()
    match = Match(
        fingerprint=Fingerprint(features={}),
        neighbours=(),
        family=None,
        response=None,
        nearest=2.0,
        farthest_known=1.0,
        refused=HOSTILE,
        notes=(HOSTILE,),
    )
    text = environment.get_template("parts/match.html").render(
        match=match, client=None, key="k", by="kim", time_s=0.0, now_s=0.0, own_record="", when=lambda one: one
    )
    assert "Refused." in text
    assert HOSTILE not in text


@pytest.mark.parametrize(
    ("after", "leads_to"),
    [
        ("/jobs?state=done", "/jobs?state=done"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        (None, "/"),
    ],
)
def test_a_login_leads_only_into_this_site(after, leads_to):
    assert _local(after) == leads_to


def test_colours_and_bars_of_a_log_are_taken_out():
    assert without_control("\x1b[32mgood\x1b[0m\a\r\n10 %\r20 %\r\nend\x00") == "good\n20 %\nend"


@pytest.mark.parametrize(
    ("text", "cut", "whole"), [("aé", 2, 1), ("a€", 3, 1), ("a€", 2, 1), ("a€", 4, 4), ("abc", 3, 3)]
)
def test_a_character_is_never_cut(text, cut, whole):
    assert _whole_characters(text.encode()[:cut]) == whole


@pytest.mark.parametrize("name", ["../page.py", "%2e%2e/page.py", "page.py", "..%2fpage.py", "", "page.css/"])
def test_only_files_of_the_page_are_served(bare, name):
    assert bare.client.get(f"/page/static/{name}").status_code == 404


def test_the_page_fetches_nothing_from_elsewhere(bare):
    for name in ("page.css", "page.js", "mark.svg"):
        answer = bare.client.get(f"/page/static/{name}")
        assert answer.status_code == 200
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text)
    policy = bare.client.get("/login").headers["content-security-policy"]
    assert "unsafe" not in policy


def test_templates_and_static_files_are_beside_the_code():
    folder = Path(page.__file__).parent
    assert {"page.css", "page.js", "mark.svg"} <= {one.name for one in (folder / "static").iterdir()}
    assert (folder / "templates" / "base.html").exists()
