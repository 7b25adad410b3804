"""What was said of these results before, beside what their tables give: which figures repeat, and which do not.

Two voices: counts made over the published raw logs, and the paper on MLPerf Power (HPCA 2025, arXiv 2410.12032).
What only the table itself has told before, and should tell again, is marked as such.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from wattsmith.report.analysis import (
    Result,
    RoundCount,
    Step,
    Work,
    accuracy_costs,
    count_rounds,
    largest_gain,
    median_cost,
    trend,
)
from wattsmith.report.analysis_tables import Corpus, Published, Tiny, Training

LOGS, PAPER, TABLE = "raw logs", "paper", "this table"
RESULTS_BY_ROUND = {
    "v1.0": 862,
    "v1.1": 382,
    "v2.0": 2262,
    "v2.1": 2475,
    "v3.0": 2447,
    "v4.0": 984,
    "v4.1": 31,
    "v5.1": 23,
}
RECORDINGS_BY_ROUND = {
    "v1.0": 468,
    "v1.1": 255,
    "v2.0": 906,
    "v2.1": 929,
    "v3.0": 950,
    "v4.0": 403,
    "v4.1": 26,
    "v5.1": 14,
}
CLOSED_BY_ROUND = {"v1.0": 110, "v1.1": 194, "v2.0": 288, "v2.1": 191, "v3.0": 230, "v4.0": 105, "v4.1": 31, "v5.1": 11}
DGX = "NVIDIA DGX H100"
TOKENS_PER_GPTJ_SAMPLE = 69.0


class Outcome(StrEnum):
    """How a figure that was said compares with ours."""

    AGREES = "agrees"
    DIFFERS = "differs"  # known, and explained in `why`
    MISMATCH = "MISMATCH"  # it should agree, or is known to differ, and does not do so any more
    UNCHECKED = "not checked"  # its table is not here


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One figure, as it was said and as the tables give it."""

    topic: str
    text: str
    said_by: str
    said: float
    unit: str
    ours: float | None  # None: its table is not here
    within_ratio: float = 0.0  # how far apart they may be, as a share of what was said
    repeats: bool = True  # False: it is known not to repeat
    why: str = ""

    @property
    def agrees(self) -> bool:
        return self.ours is not None and abs(self.ours - self.said) <= self.within_ratio * abs(self.said) + 1e-12

    @property
    def outcome(self) -> Outcome:
        if self.ours is None:
            return Outcome.UNCHECKED
        if self.agrees is not self.repeats:
            return Outcome.MISMATCH
        return Outcome.AGREES if self.repeats else Outcome.DIFFERS


def claims_of(corpus: Corpus) -> list[Claim]:
    """Every figure that is checked, in order."""
    return [
        *_counts(corpus),
        *_quality(corpus.results),
        *_reproduction(corpus.results),
        *_trends(corpus),
        *_one_system(corpus),
        *_accuracy(corpus.results),
        *_training(corpus.training),
        *_tiny(corpus.tiny),
    ]


def _claim(topic: str, said_by: str) -> Callable[..., Claim]:
    def make(text: str, said: float, ours: float | None, unit: str = "", **more: object) -> Claim:
        return Claim(topic=topic, text=text, said_by=said_by, said=said, unit=unit, ours=ours, **more)  # type: ignore[arg-type]

    return make


def _counts(corpus: Corpus) -> Iterator[Claim]:
    of, results = _claim("counts", LOGS), corpus.results
    yield of("usable inference power results", 9466, len(results))
    yield of(
        "distinct recordings",
        3951,
        len({one.recording for one in results}),
        why="3,953 in the repositories; 2 are absent from their snapshots, and 3 of 9,469 results with them",
    )
    by_round = {one.round: one for one in count_rounds(results)}
    absent = {"v3.0": "2 more are absent from the snapshot", "v5.1": "1 more is absent from the snapshot"}
    for name, said in RESULTS_BY_ROUND.items():
        yield of(f"results of {name}", said, _of(by_round, name, "results"), why=absent.get(name, ""))
    for name, said in RECORDINGS_BY_ROUND.items():
        yield of(f"recordings of {name}", said, _of(by_round, name, "recordings"), why=absent.get(name, ""))
    for name, said in CLOSED_BY_ROUND.items():
        yield of(f"closed results of {name}", said, _of(by_round, name, "closed"), why=absent.get(name, ""))
    yield of("systems", 163, len({one.owner for one in results}))
    yield of("closed systems, each round by itself", 153, len({(r.round, r.owner) for r in results if r.closed}))
    yield of("least power of a run", 2.5, _least(results), "W", within_ratio=0.02)
    yield of("most power of a run", 10_400, _most(results), "W", within_ratio=0.01)
    yield of("training results", 29, len(corpus.training) or None)
    yield of("tiny results", 153, len(corpus.tiny) or None)
    yield of("tiny results with their trace", 114, sum(one.has_trace for one in corpus.tiny) if corpus.tiny else None)
    span = _claim("power", PAPER)
    edge = [one for one in results if one.closed and "edge" in one.category]
    before = [one for one in results if one.closed and "datacenter" in one.category and one.round != "v5.1"]
    yield span("least power, edge", 3.9, _least(edge), "W", within_ratio=0.02)
    yield span("most power, edge", 1_100, _most(edge), "W", within_ratio=0.03)
    yield span("most power, datacenter, up to v4.1", 6_300, _most(before), "W", within_ratio=0.01)
    yield span(
        "least power, datacenter",
        267,
        _least(before),
        "W",
        within_ratio=0.02,
        repeats=False,
        why="the logs of v1.0–v4.1 hold closed datacenter runs below that",
    )


def _of(by_round: Mapping[str, RoundCount], name: str, what: str) -> float:
    return float(getattr(by_round[name], what)) if name in by_round else 0.0


def _quality(results: Sequence[Result]) -> Iterator[Claim]:
    of = _claim("quality of the logs", LOGS)
    rates = [(one.samples + one.invalid_samples) / one.window_s for one in results if one.window_s > 0]
    gaps = [one.longest_gap_s for one in results if one.longest_gap_s is not None]
    yield of("shortest window", 600.0, min((one.window_s for one in results), default=None), "s", within_ratio=1e-6)
    yield of("fewest samples a second", 0.998, min(rates, default=None), "1/s", within_ratio=0.001)
    yield of("most samples a second", 1.002, max(rates, default=None), "1/s", within_ratio=0.001)
    yield of("longest gap between samples", 3.99, max(gaps, default=None), "s", within_ratio=1e-3)
    yield of("runs with a gap above 2 s", 12, sum(gap > 2 for gap in gaps))
    uncertain = [one for one in results if one.uncertain_samples]
    yield of("runs with a sample above 1 % uncertainty", 361, len(uncertain))
    yield of("of these, closed", 21, sum(one.closed for one in uncertain))
    spread = sorted(one.power_spread_w / one.power_w for one in results if one.power_spread_w is not None)
    yield of("spread of power in the window, median", 0.023, _at(spread, 0.5), within_ratio=0.02)
    yield of("spread of power in the window, 95th percentile", 0.09, _at(spread, 0.95), within_ratio=0.03)
    apart = sorted(abs(one.power_w / one.ranging_power_w - 1) for one in results if one.ranging_power_w)
    yield of("testing against ranging power, median", 0.0034, _at(apart, 0.5), within_ratio=0.02)
    yield of("testing against ranging power, 95th percentile", 0.042, _at(apart, 0.95), within_ratio=0.02)
    skews = sorted(one.clock_skew_s for one in results if one.clock_skew_s is not None)
    yield of("clocks of client and director apart, median", 0.006, _at(skews, 0.5), "s", within_ratio=0.05)
    yield of("clocks of client and director apart, most", 0.579, skews[-1] if skews else None, "s", within_ratio=0.01)
    for text, low_w, high_w, said in (
        ("below 75 W", 0, 75, 0.45),
        ("75–500 W", 75, 500, 0.95),
        ("above", 500, 1e9, 0.99),
    ):
        factors = sorted(
            one.power_factor_ratio
            for one in results
            if one.power_factor_ratio is not None and one.power_factor_ratio > 0 and low_w <= one.power_w < high_w
        )
        yield of(f"power factor, median, {text}", said, _at(factors, 0.5), within_ratio=0.01)


def _reproduction(results: Sequence[Result]) -> Iterator[Claim]:
    of, again = _claim("published figures", LOGS), _claim("published figures", TABLE)
    told = [one for one in results if one.published_figure]
    apart = [abs(figure_as_published(one) / (one.published_figure or 1) - 1) for one in told]
    yield again(
        "published figures that follow from the logs to better than 1e-6",
        713,
        sum(each < 1e-6 for each in apart),
        why=f"of {len(told)} that this table carries; over all tables 754 of 758",
    )
    yield of(
        "published figures that do not",
        4,
        sum(each >= 1e-6 for each in apart),
        why="Xavier NX 3D-UNet, v2.0: that round averaged five failed readings of −2 W in",
    )
    yield again(
        "metrics that repeat from mean power, window and queries to 2e-6, v2.0 and later",
        8_222,
        sum(_repeats(one) for one in results if one.round not in ("v1.0", "v1.1")),
        why="v1.0 and v1.1 logged a rounded rate instead of a count of queries",
    )
    yield again(
        "published figures whose unit is wrong: tokens under the name of samples or queries",
        13,
        sum(one.labelled_wrong for one in results),
        why="found by the rate in the run's own log",
    )


def figure_as_published(one: Result) -> float:
    """The metric in the unit of the published table: millijoules, or watts."""
    return one.metric * 1e3 if one.published_figure_units == "millijoules" else one.metric


def _repeats(one: Result) -> bool:
    if one.metric_unit == "W":
        return abs(one.metric / one.power_w - 1) < 2e-6
    if not one.queries:
        return False
    inferred = 8 if one.scenario != one.scenario_run else 1
    return abs(one.metric / (inferred * one.power_w * one.window_s / one.queries) - 1) < 2e-6


def _trends(corpus: Corpus) -> Iterator[Claim]:
    of, results = _claim("trends", PAPER), corpus.results
    for model, said in (("retinanet", 2.99), ("bert-99", 1.69), ("rnnt", 1.25)):
        steps = trend(results, model, category="datacenter")
        yield of(f"{model}, datacenter, gain over all rounds", said, largest_gain(steps), "×", within_ratio=0.005)
    resnet = trend(results, "resnet50", category="datacenter")
    yield of(
        "resnet50, datacenter, gain over all rounds",
        3.06,
        largest_gain(resnet),
        "×",
        within_ratio=0.005,
        repeats=False,
        why="two rows of v4.1 were exchanged in the paper's data; without them it is 1.84×",
    )
    yield _claim("trends", LOGS)(
        "resnet50, datacenter, gain without the exchanged rows", 1.84, largest_gain(resnet), "×", within_ratio=0.005
    )
    edge = trend([one for one in results if one.round < "v4"], "bert-99", category="edge")
    yield of("bert-99, edge, gain", 4.0, largest_gain(edge), "×", within_ratio=0.01)
    yield of(
        "rnnt, edge, gain",
        4.0,
        largest_gain(trend(results, "rnnt", category="edge")),
        "×",
        within_ratio=0.01,
        repeats=False,
        why="Offline, best closed result of each round, v1.0 to v4.0",
    )
    yield from _language(corpus)


def _language(corpus: Corpus) -> Iterator[Claim]:
    """The paper's headline, over a hundredfold: it divides tokens by samples."""
    paper, logs = _claim("language models", PAPER), _claim("language models", LOGS)
    llama = trend(corpus.results, "llama2-70b-99.9")
    at = {step.round: step.efficiency for step in llama}
    for name, said in (("v4.0", 0.0102), ("v4.1", 0.0141), ("v5.1", 0.036)):
        found = at.get(name)
        yield logs(
            f"Llama-2-70B, best of {name}", said, found.per_joule if found else None, "samples/J", within_ratio=0.01
        )
    why = "with one unit throughout. Over a hundredfold appears when tokens per joule are divided by samples per joule"
    gain = _gain_until(llama, "v4.1")
    yield paper("Llama-2-70B, gain in about a year", 100, gain, "×", within_ratio=0.1, repeats=False, why=why)
    yield logs("Llama-2-70B, gain v4.0 to v4.1", 1.4, gain, "×", within_ratio=0.03)
    gptj, mixed = _gptj_gains(corpus)
    yield paper("GPT-J, gain in about a year", 100, gptj, "×", within_ratio=0.1, repeats=False, why=why)
    yield logs("GPT-J, gain v3.1 to v4.1 in samples", 1.73, gptj, "×", within_ratio=0.005)
    yield logs("GPT-J, tokens/J of v4.1 over samples/J of v3.1", 119, mixed, "×", within_ratio=0.005)
    best = [one for one in corpus.results if one.round == "v4.1" and one.model == "resnet50" and one.efficiency]
    for category, said in (("datacenter", 327.5), ("edge", 423.6)):
        found_best = max(
            (r.efficiency.per_joule for r in best if r.efficiency and category in r.category), default=None
        )
        yield logs(f"resnet50, best of v4.1, {category}", said, found_best, "samples/J", within_ratio=0.001)
        if category == "datacenter":
            yield paper(
                "resnet50, best of v4.1, by the paper's data",
                544.6,
                found_best,
                "samples/J",
                within_ratio=0.001,
                repeats=False,
                why="two rows were exchanged there",
            )


def _gain_until(steps: Sequence[Step], last: str) -> float | None:
    at = {step.round: step.efficiency for step in steps}
    return at[last].over(steps[0].efficiency) if last in at and len(steps) > 1 else None


def _gptj_gains(corpus: Corpus) -> tuple[float | None, float | None]:
    """GPT-J from v3.1 to v4.1: in samples, and with units mixed as the headline has it."""
    first = max(
        (r.per_joule for r in corpus.published if _is_gptj(r, "v3.1") and r.per_joule is not None), default=None
    )
    last = [
        one for one in corpus.results if one.round == "v4.1" and one.model == "gptj-99" and one.scenario == "offline"
    ]
    if first is None or not last or last[0].efficiency is None:
        return None, None
    best = last[0].efficiency
    tokens = best.as_work(Work.TOKENS, TOKENS_PER_GPTJ_SAMPLE)
    return best.per_joule / first, tokens.per_joule / first


def _is_gptj(row: Published, name: str) -> bool:
    return (row.round, row.model, row.scenario) == (name, "gptj-99", "offline")


def _one_system(corpus: Corpus) -> Iterator[Claim]:
    of = _claim("one DGX H100", PAPER)
    each_j = {
        one.model: one.efficiency.energy_each_j
        for one in corpus.results
        if one.round == "v4.0" and DGX in one.system_name and one.scenario == "offline" and one.efficiency
    }

    def ratio(over: str, under: str) -> float | None:
        return each_j[over] / each_j[under] if over in each_j and under in each_j else None

    yield of("ResNet-50", 8.7e-3, each_j.get("resnet50"), "J/sample", within_ratio=0.005)
    yield of("SDXL over RetinaNet", 1082, ratio("stable-diffusion-xl", "retinanet"), "×", within_ratio=0.002)
    yield of("DLRM-v2 (99.9) over ResNet-50", 2.3, ratio("dlrm-v2-99.9", "resnet50"), "×", within_ratio=0.02)
    server = [
        row.figure / row.performance
        for row in corpus.published
        if (row.round, row.model, row.scenario) == ("v4.0", "llama2-70b-99.9", "server") and DGX in row.system
    ]
    yield of("Llama-2-70B, Server", 111.4, server[0] if server else None, "J/query", within_ratio=0.001)
    yield of(
        "Llama-2-70B, Offline",
        111.4,
        each_j.get("llama2-70b-99.9"),
        "J/sample",
        within_ratio=0.001,
        repeats=False,
        why="the paper's figure is that of the Server scenario",
    )
    yield of(
        "Llama-2-70B over GPT-J, Offline",
        4.2,
        ratio("llama2-70b-99.9", "gptj-99"),
        "×",
        within_ratio=0.01,
        repeats=False,
        why="the paper divides Server by Offline; Offline by Offline is less",
    )


def _accuracy(results: Sequence[Result]) -> Iterator[Claim]:
    of = _claim("BERT at 99.9 % over 99 %", PAPER)
    costs = accuracy_costs(results, scenario="offline")
    for name, said in (("v1.0", 0.49), ("v3.0", 0.51)):
        ours = median_cost(costs, round_name=name, model="bert")
        yield of(f"efficiency kept, median of {name}", said, ours, within_ratio=0.01)
    for name, system, said in (("v4.0", DGX, 0.854), ("v4.1", "H200", 0.846)):
        ours = median_cost(costs, round_name=name, model="bert", system=system)
        yield of(f"efficiency kept, {system}, {name}", said, ours, within_ratio=0.001)


def _training(rows: Sequence[Training]) -> Iterator[Claim]:
    paper, logs = _claim("training", PAPER), _claim("training", LOGS)
    padded = [row for row in rows if row.padded_before_s > 50]
    diluted = sorted(row.in_window_j / row.official_j - 1 for row in padded)
    yield logs("results diluted by idle padding", 14, len(padded) if rows else None)
    yield logs("least dilution among them", 0.03, diluted[0] if diluted else None, within_ratio=0.05)
    yield logs("most dilution among them", 0.35, diluted[-1] if diluted else None, within_ratio=0.01)
    told = [row for row in rows if row.published_j is not None]
    apart = [abs(row.official_j / (row.published_j or 1) - 1) for row in told]
    yield logs("published energies", 24, len(told) if rows else None)
    yield logs("published energies that follow to 1e-5", 23, sum(each < 1e-5 for each in apart) if rows else None)
    unet = next((row for row in rows if (row.benchmark, row.accelerators) == ("unet3d", 72)), None)
    yield logs("UNet3D on 72 GPUs, as published", 6.01e6, unet and unet.official_j, "J", within_ratio=1e-3)
    yield logs("UNet3D on 72 GPUs, in its window", 8.09e6, unet and unet.in_window_j, "J", within_ratio=1e-3)
    lora = {r.accelerators: r for r in rows if r.benchmark == "llama2_70b_lora" and r.submitter == "smc-dc-power"}
    one, many = lora.get(8), lora.get(512)
    yield paper("LoRA on 8 GPUs", 11.77e6, one and one.official_j, "J", within_ratio=1e-3)
    yield paper("LoRA on 512 GPUs", 45.84e6, many and many.official_j, "J", within_ratio=1e-3)
    yield paper("LoRA on 8 GPUs, time", 29.1 * 60, one and one.duration_s, "s", within_ratio=1e-3)
    yield paper("LoRA on 512 GPUs, time", 2.0 * 60, many and many.duration_s, "s", within_ratio=0.01)
    yield paper("LoRA on 512 GPUs, interconnect", 7.2e6, many and many.switches_j, "J", within_ratio=1e-3)
    growth = many.official_j / one.official_j if one and many else None
    yield paper(
        "LoRA, energy of 512 GPUs over 8",
        3.8,
        growth,
        "×",
        within_ratio=0.01,
        repeats=False,
        why="as published it is 3.9×; in the runs' own windows it is 3.8×",
    )
    in_window = many.in_window_j / one.in_window_j if one and many else None
    yield logs("LoRA, energy of 512 GPUs over 8, in the windows", 3.8, in_window, "×", within_ratio=0.01)


def _tiny(rows: Sequence[Tiny]) -> Iterator[Claim]:
    of = _claim("tiny", PAPER)
    names = {"ic": ("ResNet", 1000, 0.06), "ad": ("anomaly detection", 79, 0.01)}
    names |= {"kws": ("keyword spotting", 397, 0.005), "vww": ("visual wake words", 596, 0.005)}
    for task, (name, said, within_ratio) in names.items():
        all_j = [row.energy_each_j for row in rows if row.task == task]
        reference = [row.energy_each_j for row in rows if row.task == task and row.submitter == "reference"]
        gain = reference[0] / min(all_j) if reference else None
        why = "from a Cortex-M4 reference board to a GAP9 accelerator"
        yield of(f"{name}, gain over the reference", said, gain, "×", within_ratio=within_ratio, why=why)


def _least(results: Sequence[Result]) -> float | None:
    return min((one.power_w for one in results), default=None)


def _most(results: Sequence[Result]) -> float | None:
    return max((one.power_w for one in results), default=None)


def _at(ordered: Sequence[float], share: float) -> float | None:
    """The value at SHARE of the way through ORDERED."""
    if not ordered:
        return None
    return median(ordered) if share == 0.5 else ordered[min(len(ordered) - 1, int(share * len(ordered)))]
