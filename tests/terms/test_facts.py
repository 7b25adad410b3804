"""Facts become plain JSON values, and nothing is lost or invented on the way."""

import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from wattsmith.terms.energy import CrossCheck, DomainEnergy, MeterCard, Source, Window
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.facts import as_plain


@dataclass(frozen=True)
class Late:
    """A fact whose property is annotated in a string, as a module with postponed annotations has it."""

    steps: int

    @property
    def double(self) -> "int":
        return 2 * self.steps


class Shade(Enum):
    RED = "red"


def test_a_window_keeps_its_figures_sources_and_sums():
    window = Window(
        name="epoch",
        began_at="2026-01-02T03:04:05+00:00",
        duration_s=2.0,
        domains=(
            DomainEnergy(
                domain="gpu:0",
                name="a card",
                source=Source.COUNTER,
                energy_j=600.0,
                error_j=6.0,
                resolution_s=0.02,
                cross_check=CrossCheck(duration_s=2.0, counter_j=600.0, integrated_j=597.0, joint_error_j=5.0),
            ),
        ),
        missing={"cpu-package": "no RAPL here"},
    )
    plain = json.loads(json.dumps(as_plain(window), allow_nan=False))
    assert plain["energy_j"] == 600.0
    assert plain["power_w"] == 300.0
    assert plain["simulated"] is False
    assert plain["missing"] == {"cpu-package": "no RAPL here"}
    assert "counted" not in plain  # whole facts are written once
    (domain,) = plain["domains"]
    assert domain["source"] == "counter"
    assert domain["cross_check"]["agrees"] is True


def test_unknown_stays_unknown():
    card = MeterCard(domain="gpu:0", name="a card", source=Source.POLLED, power_period_s=0.1)
    plain = as_plain(card)
    assert plain["counter_period_s"] is None
    assert plain["resolution_s"] == 0.1


@pytest.mark.parametrize(
    ("fact", "plain"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        (math.nan, None),
        (-math.inf, None),
        ("µ", "µ"),
        (Source.MODELLED, "modelled"),
        (Shade.RED, "red"),
        (Path("a/b"), "a/b"),
        ((1, [2.0, math.inf]), [1, [2.0, None]]),
        ({2: (1,), Source.COUNTER: None}, {"2": [1], "counter": None}),
        ({"b", "a", "c"}, ["a", "b", "c"]),
        (Late(steps=2), {"steps": 2, "double": 4}),
    ],
)
def test_each_value_has_one_plain_form(fact, plain):
    assert as_plain(fact) == plain
    assert type(as_plain(fact)) is type(plain)


def test_a_value_without_a_plain_form_is_refused_by_name():
    with pytest.raises(BadTerm, match=r"is a complex, which has no plain form"):
        as_plain({"impedance": 3 + 4j})
