"""A schema says what facts become as JSON, in the words of the facts."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import pytest

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.facts import as_plain
from wattsmith.terms.schema import schema_of
from wattsmith.terms.telemetry import Stretch as SeenStretch

jsonschema = pytest.importorskip("jsonschema", reason="SCHEMAS ARE NOT CHECKED: jsonschema is not installed")


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A leaf."""

    area_m2: float
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A tree. It may hold trees."""

    height_m: float | None  # None: nobody measured it
    leaves: tuple[Leaf, ...] = ()
    span: tuple[int, int] = (0, 1)
    by_name: Mapping[str, "Tree"]

    @property
    def tall(self) -> bool | None:
        """None: not known."""
        return None if self.height_m is None else self.height_m > 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Of something else."""

    of: SeenStretch


def schema(**more):
    return schema_of(Tree, name="tree", title="A tree", **more)


def keeps(value, **more):
    return jsonschema.Draft202012Validator(schema(**more)).is_valid(value)


TREE = Tree(height_m=None, leaves=(Leaf(area_m2=0.5),), by_name={"son": Tree(height_m=12.0, by_name={})})


def test_what_a_fact_becomes_keeps_its_schema():
    jsonschema.Draft202012Validator.check_schema(schema())
    assert keeps(as_plain(TREE))


@pytest.mark.parametrize(
    "change", [{"height_m": "tall"}, {"leaves": [{}]}, {"tall": 3}, {"span": [1]}, {"by_name": {"son": 1}}, {"more": 1}]
)
def test_what_a_fact_never_becomes_breaks_it(change):
    assert not keeps(as_plain(TREE) | change)


def test_every_field_is_told_and_what_has_a_default_need_not_be_given():
    assert schema()["$defs"]["Tree"]["required"] == ["height_m", "leaves", "span", "by_name", "tall"]
    assert schema(told=False)["$defs"]["Tree"]["required"] == ["height_m", "by_name"]
    assert keeps({"height_m": 3.0, "by_name": {}}, told=False)


def test_the_words_behind_a_field_are_those_of_the_schema():
    told = schema()["$defs"]["Tree"]["properties"]
    assert told["height_m"] == {"type": ["number", "null"], "description": "null: nobody measured it"}
    assert told["tall"]["description"] == "null: not known."
    assert "description" not in told["span"]


def test_two_kinds_of_one_name_are_not_mixed_up():
    with pytest.raises(BadTerm, match="Stretch"):
        schema_of(Stretch, name="x", title="x")
