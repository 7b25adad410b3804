"""A service with something to show on its page."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.testclient import TestClient
from tests.serve.serving_here import Here

from wattsmith.flows.records import opened
from wattsmith.flows.service import ServiceOptions, open_service
from wattsmith.serve.app import ServeOptions, make_app
from wattsmith.terms.run import Consumption, Device, Provenance, Run, Status, StepTimes, Structure
from wattsmith.terms.service import ClientAbout, DeviceAbout, DomainReport, Report, Role, Token
from wattsmith.terms.work import Setting, Workload

GPU = "NVIDIA L40S"
BOOT = "boot-1"
POOL = """\
nodes:
  - {name: rack-1, device: h200, count: 2, memory: 141GiB, idle: 75W}
"""


@contextmanager
def showing(home: Path, runs: int = 12) -> Iterator[Here]:
    """A service of a machine with two devices, whose own reports are made here, with RUNS in its record."""
    (home / "pool.yaml").write_text(POOL)
    options = ServiceOptions(
        db=str(home / "service.sqlite"), home=home, pool=home / "pool.yaml", meters="none", watch=False
    )
    with open_service(options) as service:
        fill_record(home / "service.sqlite", runs)
        app = make_app(service, ServeOptions(rate_hz=1e6, burst=1e6))
        with TestClient(app, base_url="http://localhost") as client:
            here = Here(service, app, client, home)
            for role in Role:
                here.tokens[role.value] = here.add_token("rack-1" if role is Role.AGENT else role.value, role)
            yield here
            for job in service.jobs():
                if not job.state.is_over:
                    service.cancel(job.id, token_of(here, "admin"))


def job(name: str, seconds: float = 60.0, **more: object) -> dict[str, object]:
    """A job that says what it does and sleeps."""
    code = f"import time; print('{name} begins', flush=True); time.sleep({seconds})"
    return {
        "name": name,
        "command": ["python", "-c", code],
        "steps": 1000,
        "step": "50ms",
        "power": "300W",
        **more,
    }


def token_of(here: Here, role: str) -> Token:
    token = here.service.whoami(here.tokens[role])
    assert token is not None
    return token


def submit(here: Here, name: str, seconds: float = 60.0, role: str = "submit", **more: object) -> str:
    """The id of a job that was submitted."""
    kept = here.service.submit(job(name, seconds, **more), files={}, structure=None, once=None, by=token_of(here, role))
    return kept.id


def report(number: int, time_s: float, power_w: float, gpus: int = 1) -> Report:
    domains = {
        f"gpu:{place}": DomainReport(
            power_w=power_w + 10 * place,
            busy_ratio=0.9,
            memory_used_bytes=20 << 30,
            clock_hz=1.4e9,
            power_limit_w=350.0,
        )
        for place in range(gpus)
    }
    return Report(boot=BOOT, number=number, time_s=time_s, domains=domains)


def add_client(here: Here, name: str, reports: int = 12, gpus: int = 2) -> None:
    """A client that has told what it is, and sent reports."""
    devices = tuple(
        DeviceAbout(
            domain=f"gpu:{place}",
            name=GPU,
            memory_bytes=48 << 30,
            power_limit_w=350.0,
            power_limit_range_w=(100.0, 350.0),
            simulated=True,
        )
        for place in range(gpus)
    )
    about = ClientAbout(version="0.1.0", host=f"{name}.lab", devices=devices, knobs=("power_limit",), simulated=True)
    here.service.keep_about(name, about)
    now_s = here.service.now_s()
    sent = [
        report(number, now_s - reports + number, 250.0 + 40 * math.sin(number), gpus)
        for number in range(1, reports + 1)
    ]
    here.service.keep_reports(name, sent, token_of(here, "admin"))


def add_plan(here: Here) -> str:
    jobs = [{key: value for key, value in job(name).items() if key != "command"} for name in ("bert", "vit", "unet")]
    pool = {"nodes": [{"name": "rack-1", "device": "h200", "count": 2}]}
    wishes = {"budget_w": 1000.0, "exact": False}
    key, _ = here.service.plan(json.dumps({"jobs": jobs}), json.dumps(pool), wishes, token_of(here, "submit"))
    return key


def a_run(number: int) -> Run:
    """A measured run; those with higher numbers do more."""
    return Run(
        workload=Workload(family="cnn" if number % 2 else "mlp", parameters={"width": number}, batch=8),
        device=Device(name="NVIDIA H200", kind="cuda", simulated=True),
        setting=Setting(),
        status=Status.MEASURED,
        provenance=Provenance(measured_at=f"2026-10-01T10:00:{number:02d}+00:00", session="s", hostname="rack-1"),
        structure=Structure(
            parameters=1000,
            parameter_bytes=4000,
            input_bytes=100,
            flops=10.0 ** (6 + number / 4),
            moved_bytes=1e5,
            launches=10,
            peak_bytes=10_000,
        ),
        times=StepTimes(steps=10, mean_s=0.01, median_s=0.01, spread_s=0.001, error_ratio=0.01, first_s=0.02),
        consumption=Consumption(window_s=1.0, power_w=400.0, step_energy_j=4.0, simulated=True),
    )


def fill_record(place: Path, runs: int = 12) -> None:
    with opened(str(place)) as store:
        for number in range(runs):
            store.add(a_run(number))
