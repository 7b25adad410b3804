"""Energy per query of served networks before and after tuning, and beside fine-tuning. All of it is measured here.

    python benchmarks/tune_serving.py [--device cuda:0] [--seconds 350] [--json FILE]

On a GPU resnet50 and BERT-base, randomly initialised, are served in this process; on a CPU, small networks of the same
kind, with a modelled meter if there is no other, and the script says so. Only knobs that need no privilege are turned.

For each network: what one client after the other gets at the default (batch 1, fp32, one server) is how much it can
sustain; 40 % of that come as Poisson load; three times the default's p99 under it is the limit. That is fixed before
the tuner starts. Then at most 15 trials; then default and tuned setting in turn, each several times.

Peers are replayed, with the budget of the tuner, on a table of settings that was measured here once (one network).
Beside fine-tuning of a copy of the network, a plan that knows what that costs is compared with one that does not.

Exits with 1 when the tuned setting breaks its promise or saves nothing.
"""

import argparse
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from results.shape import bar, table
from tuning.beside import beside_fine_tuning
from tuning.networks import ON_CPU, ON_GPU, Network
from tuning.table import measured_table, replayed_on
from wattsmith.flows.measuring import open_session
from wattsmith.flows.serving import Load, available_knobs, energy_of, measure_serving, served_at, tried
from wattsmith.flows.serving_knobs import How, how_of
from wattsmith.flows.serving_model import ServedModel
from wattsmith.flows.tuning import Goal, Manner, knob_of, level_of, tune
from wattsmith.measure.session import Session
from wattsmith.terms.facts import as_plain
from wattsmith.terms.tuning import Knob

LOADED = 0.4  # of what the default sustains
SLACK = 3.0  # of the default's p99
TRIALS = 15
PAIRS = 5
TRIAL_PART = 0.75  # of the window in which before and after are compared
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}  # by count


def knobs_for(limit_s: float, *, gpu: bool) -> list[Knob]:
    waits = [0, *(f"{1e3 * limit_s * part:.3f}ms" for part in (1 / 8, 1 / 4, 1 / 2))]
    knobs = [knob_of("batch", [1, 2, 4, 8, 16], "1"), knob_of("wait", waits, "0")]
    if gpu:
        knobs += [knob_of("precision", ["fp32", "tf32", "bf16"], "fp32"), knob_of("concurrency", [1, 2], "1")]
        return [*knobs, knob_of("graph", ["off", "on"], "off")]
    return [*knobs, knob_of("precision", ["fp32", "bf16"], "fp32"), knob_of("concurrency", [1, 2], "1")]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of its 95 % interval."""
    mean = statistics.fmean(values)
    return mean, T_95[min(len(values), 10)] * statistics.stdev(values) / math.sqrt(len(values))


class Bench:
    """One network on one device."""

    def __init__(self, network: Network, options: argparse.Namespace, session: Session, window_s: float) -> None:
        self.network, self.options, self.session, self.window_s = network, options, session, window_s
        self.model = ServedModel(network.build, inputs=list(network.inputs), device=options.device)
        self.told: dict[str, Any] = {"network": network.name}
        self.load = Load(rate_hz=1.0)
        self.limit_s = math.inf
        self.again = 1000

    def say(self, words: str) -> None:
        print(f"[{time.perf_counter() - BEGUN_S:6.1f} s] {self.network.name}: {words}", flush=True)

    def window(self, how: How, window_s: float | None = None) -> dict[str, Any]:
        """Serve once at HOW; all metrics."""
        self.again += 1
        load = replace(self.load, duration_s=window_s or self.window_s)
        got = measure_serving(self.model, how, load, self.session, self.again)
        return {**got.metrics, "over": got.served.over(self.limit_s), "queries": got.served.arrived}

    def fix_the_task(self) -> None:
        """The rate and the limit, from the default alone."""
        how = How()
        answers = self.model.servers(how)
        served_at(answers, how, Load(kind="clients", clients=1, duration_s=0.3))
        came = served_at(answers, how, Load(kind="clients", clients=1, duration_s=1.5))
        sustained_hz = came.answered / came.duration_s
        with self.session.measure("idle") as window:
            time.sleep(1.5)
        idle = window.result()
        idle_j = energy_of(idle, self.options.device)
        self.load = Load(rate_hz=LOADED * sustained_hz, duration_s=self.window_s)
        first = self.window(how)
        self.limit_s = SLACK * first["latency_p99_s"]
        self.told |= {
            "sustained_hz": sustained_hz,
            "rate_hz": self.load.rate_hz,
            "limit_s": self.limit_s,
            "idle_w": None if idle_j is None else idle_j / idle.duration_s,
            "default": first,
        }
        self.say(
            f"default sustains {sustained_hz:.0f}/s; load {self.load.rate_hz:.0f}/s Poisson; p99 "
            f"{1e3 * first['latency_p99_s']:.2f} ms, limit {1e3 * self.limit_s:.2f} ms; "
            f"idle {self.told['idle_w']:.0f} W"
        )

    def tune(self) -> Mapping[str, Any]:
        knobs = knobs_for(self.limit_s, gpu=self.model.cuda)
        knobs = available_knobs(self.model, knobs, self.say)
        goal = Goal(limits=(f"latency_p99<={self.limit_s!r}s",), manner=Manner(budget=self.options.trials))
        made = [0]

        def measure(setting: Mapping[str, Any]) -> Any:
            made[0] += 1
            load = replace(self.load, duration_s=TRIAL_PART * self.window_s)
            return tried(self.model, setting, load, self.session, made[0])

        def watch(number: int, setting: Mapping[str, Any], trial: Any) -> None:
            got = (
                trial.failed or f"{trial.metrics['energy_j']:.4f} J, p99 {1e3 * trial.metrics['latency_p99_s']:.2f} ms"
            )
            self.say(f"trial {number} {' '.join(f'{k}={v}' for k, v in setting.items())}: {got}")

        found = tune(measure, knobs, goal, watch=watch)
        self.told["tuned"] = as_plain(found)
        self.say(f"recommended {dict(found.recommendation.setting)}: {found.recommendation.why}")
        return found.recommendation.setting

    def compare(self, setting: Mapping[str, Any]) -> None:
        """Default and tuned in turn."""
        rows: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
        for pair in range(self.options.pairs):
            order = (("before", How()), ("after", how_of(setting)))
            for name, how in order if pair % 2 == 0 else reversed(order):  # a drift must not favour one of them
                rows[name].append(self.window(how))
        self.told["compared"] = rows
        saved = [1 - b["energy_j"] / a["energy_j"] for a, b in zip(rows["before"], rows["after"], strict=True)]
        self.told["saving"], self.told["saving_half"] = interval(saved)
        for name, windows in rows.items():
            energy_j, half_j = interval([one["energy_j"] for one in windows])
            worst_s = max(one["latency_p99_s"] for one in windows)
            over = statistics.fmean(one["over"] for one in windows)
            power_w = statistics.fmean(one["power_w"] for one in windows)
            self.told[name] = {
                "energy_j": energy_j, "energy_half_j": half_j, "p99_worst_s": worst_s, "over": over, "power_w": power_w,
                "p99_s": statistics.fmean(one["latency_p99_s"] for one in windows),
            }  # fmt: skip
            self.say(
                f"{name:<6} {energy_j:.4f} ± {half_j:.4f} J per query, {power_w:.0f} W, p99 worst "
                f"{1e3 * worst_s:.2f} ms, over the limit {over:.2%}"
            )
        idle_w = self.told["idle_w"]
        above = 1 - (self.told["after"]["power_w"] - idle_w) / (self.told["before"]["power_w"] - idle_w)
        self.told["saving_above_idle"] = above
        self.say(
            f"saved {self.told['saving']:.1%} ± {self.told['saving_half']:.1%} (95 %); of what is drawn above idle "
            f"({idle_w:.0f} W) {above:.0%}"
        )

    def one_by_one(self, window_s: float) -> None:
        """What knobs do that the search did not turn: the default with one of them moved."""
        waits = f"{1e3 * self.limit_s / 4:.3f}ms"
        settings = [{}, {"pace": waits, "batch": 8}, {"threads": 1}, {"share": "50%"}, {"share": "25%"}]
        rows = []
        for setting in settings:
            got = tried(self.model, setting, replace(self.load, duration_s=window_s), self.session, 77)
            why = getattr(got, "why", None)
            rows.append({"setting": setting, "failed": why, "metrics": dict(getattr(got, "metrics", {}))})
            told = why or f"{got.metrics['energy_j']:.4f} J, p99 {1e3 * got.metrics['latency_p99_s']:.2f} ms"
            self.say(f"one knob {setting or 'default'}: {told}")
        self.told["one_by_one"] = rows


def meters_for(device: str) -> str:
    with open_session("auto") as session, session.measure("look") as window:
        time.sleep(0.2)
    if energy_of(window.result(), device) is not None:
        return "auto"
    if device != "cpu":
        sys.exit(f"NOT DONE: no meter tells the energy of {device}")
    print("NO METER on this CPU: energies below are MODELLED (10 W idle, 65 W busy), not measured")
    return "modelled:10W-65W"


BEGUN_S = time.perf_counter()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=None, help="cuda:0 or cpu; by default what there is")
    parser.add_argument("--seconds", type=float, default=350.0, help="about how long all of it may take")
    parser.add_argument("--trials", type=int, default=TRIALS, help="that the tuner may make")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of before and after")
    parser.add_argument("--network", help="this one alone")
    parser.add_argument("--beside-only", metavar="SETTING", help="only beside fine-tuning, at batch=8,precision=bf16")
    parser.add_argument("--json", type=Path, help="write all that was measured to this file")
    parser.add_argument("--data", type=Path, help="not needed: nothing is read")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("NOT DONE: torch is not installed")
        return 2
    import torch

    options.device = options.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    gpu = options.device.startswith("cuda")
    networks = [one for one in (ON_GPU if gpu else ON_CPU) if options.network in (None, one.name)]
    missing = [
        name for name in ("transformers", *(("torchvision",) if gpu else ())) if not importlib.util.find_spec(name)
    ]
    if missing:
        print(f"NOT DONE: {', '.join(missing)} is not installed")
        return 2
    meters = meters_for(options.device)
    part = options.seconds / 350.0  # the shares below were fitted to 350 s
    window_s, short_s = max(0.5, 4.0 * min(part, 1.0)), max(0.3, 1.5 * min(part, 1.0))
    name = torch.cuda.get_device_name(0) if gpu else "CPU, small networks"
    told: dict[str, Any] = {
        "device": name, "torch": torch.__version__, "meters": meters, "modelled": meters != "auto",
        "window_s": window_s, "short_s": short_s, "networks": [],
    }  # fmt: skip
    print(f"{name}, PyTorch {torch.__version__}, windows of {window_s:g} s")
    with open_session(meters) as session:
        for at, network in enumerate(networks):
            bench = Bench(network, options, session, window_s)
            with bench.model:
                bench.fix_the_task()
                if options.beside_only:
                    setting = dict(one.split("=") for one in options.beside_only.split(","))
                    setting = {name: level_of(level) for name, level in setting.items()}
                    bench.told["beside"] = beside_fine_tuning(bench, setting)
                    told["networks"].append(bench.told)
                    continue
                setting = bench.tune()
                bench.compare(setting)
                if at == 0:
                    bench.told["table"] = table = measured_table(bench, short_s)
                    bench.told["peers"] = replayed_on(table, bench.limit_s, options.trials, bench.say)
                bench.told["beside"] = beside_fine_tuning(bench, setting)
                if network is networks[-1]:  # last of all: what runs in a part of a GPU may leave traces in libraries
                    bench.one_by_one(short_s)
            told["networks"].append(bench.told)
            if options.json:  # what was measured so far is kept, whatever comes
                options.json.write_text(json.dumps(told, indent=1, default=str) + "\n")
    told["took_s"] = time.perf_counter() - BEGUN_S
    if options.json and not options.beside_only:
        told |= told_of(told)
    if options.json:
        options.json.write_text(json.dumps(told, indent=1, default=str) + "\n")
    return 0 if options.beside_only else verdict(told)


def told_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """The same as tables and bars."""
    heads = [
        *("network", "queries/s", "limit on p99, ms", "before, J/query", "after, J/query", "saved", "foretold"),
        *("of what is drawn above idle", "p99 before, ms", "p99 after, ms", "over the limit", "tuned setting"),
    ]
    rows, tables = [], []
    for one in told["networks"]:
        found = one["tuned"]["recommendation"]
        rows.append([
            one["network"], one["rate_hz"], 1e3 * one["limit_s"],
            *(f"{one[when]['energy_j']:.3f} ± {one[when]['energy_half_j']:.3f}" for when in ("before", "after")),
            f"{one['saving']:.1%} ± {one['saving_half']:.1%}", f"{found['saving']['value']:.1%}",
            f"{one['saving_above_idle']:.0%}",
            *(1e3 * one[when]["p99_worst_s"] for when in ("before", "after")), f"{one['after']['over']:.2%}",
            ", ".join(f"{name} {level}" for name, level in found["setting"].items()),
        ])  # fmt: skip
        if one.get("peers"):
            peers = [
                [name, peer["to_5"], f"{peer['excess']:.1%}", peer["infeasible"], peer["trials"]]
                for name, peer in one["peers"].items()
            ]
            title = f"Searches replayed on a table of {len(one['table'])} settings of {one['network']}"
            names = ["method", "trials to 5 % of the best", "ends above it by", "infeasible trials", "trials made"]
            tables.append(table(title, names, peers))
    bars = [
        one_bar
        for one in told["networks"]
        for one_bar in (
            bar(f"{one['network']}: something is surely saved", f"{one['saving']:.1%} ± {one['saving_half']:.1%}",
                one["saving"] - one["saving_half"] > 0),
            bar(f"{one['network']}: at most 1 % of queries over the limit", f"{one['after']['over']:.2%}",
                one["after"]["over"] <= 0.01),
        )
    ]  # fmt: skip
    how = "energy is modelled, not measured" if told["modelled"] else "energy is measured"
    return {"tables": [table(f"{told['device']}; {how}", heads, rows), *tables], "bars": bars}


def verdict(told: Mapping[str, Any]) -> int:
    good = True
    print()
    for one in told["networks"]:
        saves = one["saving"] - one["saving_half"] > 0
        keeps = one["after"]["over"] <= 0.01
        good &= saves and keeps
        print(
            f"{one['network']}: saves {one['saving']:.1%} ± {one['saving_half']:.1%}; "
            f"{one['after']['over']:.2%} of queries over the limit"
            f"{'' if saves else '  NOTHING SURELY SAVED'}{'' if keeps else '  LIMIT BROKEN'}"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
