"""A cut is drawn with data to the left of training, and what crosses between them."""

import re

import pytest

from wattsmith.report.split_plot import laid_out, plot_cut
from wattsmith.terms.cut import BOTH, DATA, TRAINING, Crossing, Cut, Place
from wattsmith.terms.errors import BadInput, NotWritten


def place(name, side, *takes, could_move=False):
    return Place(
        name=name,
        operator=f"<{name}>",
        side=side,
        why="because",
        could_move=could_move,
        takes=takes,
        output_bytes=1024 if side == DATA else None,
        line=None,
    )


@pytest.fixture
def cut():
    places = (
        place("batch", DATA),
        place("flip", DATA, "batch"),
        place("mean", BOTH),
        place("to", TRAINING, "flip", could_move=True),
        place("conv", TRAINING, "to"),
        *(place(f"deep{at}", TRAINING, f"deep{at - 1}" if at else "conv") for at in range(100)),
    )
    return Cut(
        tracer="torch.export",
        batch=8,
        any_batch=True,
        raw_bytes=1024,
        places=places,
        crossing=(Crossing(name="flip", shape=(8, 1280), dtype="uint8", size_bytes=10240),),
        unlike=(),
        needs=(),
        notes=("a < b",),
    )


def test_figures_of_a_cut_add_up(cut):
    assert (cut.data_nodes, cut.training_nodes, cut.bytes_per_step) == (2, 102, 10240)
    assert [one.name for one in cut.stayed] == ["to"]


def test_every_node_stands_after_what_it_takes_and_training_after_data(cut):
    boxes = laid_out(cut)
    assert boxes["batch"].column < boxes["flip"].column < boxes["to"].column < boxes["conv"].column
    assert "mean" not in boxes
    assert len({(one.column, one.row) for one in boxes.values()}) == len(boxes)
    assert len(boxes) < 40, "a large network is not drawn whole"


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_text_pictures_hold_what_crosses_and_escape_the_rest(cut, tmp_path, suffix):
    plot_cut(cut, tmp_path / f"cut{suffix}")
    text = (tmp_path / f"cut{suffix}").read_text()
    assert "10 KiB" in text
    assert "&lt;flip&gt;" in text
    assert not re.search(r"<flip>|a < b", text)


def test_a_png_is_a_png(cut, tmp_path):
    pytest.importorskip("matplotlib", reason="PNG IS NOT TESTED: matplotlib is not installed")
    plot_cut(cut, tmp_path / "cut.png")
    assert (tmp_path / "cut.png").read_bytes().startswith(b"\x89PNG")


def test_other_files_are_refused(cut, tmp_path):
    with pytest.raises(BadInput, match=r"\.svg, \.png, \.html"):
        plot_cut(cut, tmp_path / "cut.jpg")
    with pytest.raises(NotWritten, match="no such folder"):
        plot_cut(cut, tmp_path / "no such folder" / "cut.svg")
