"""Jobs, attempts and reports to count with; and any at all, which a store must give back unchanged."""

from hypothesis import strategies as st
from tests.store.any_runs import counts, maybe, numbers, positive, settings_of_machines, some, texts

from wattsmith.terms.energy import Source
from wattsmith.terms.jobs import JobResult
from wattsmith.terms.service import (
    Attempt,
    ClientAbout,
    DeviceAbout,
    Document,
    DomainReport,
    JobState,
    KeptReport,
    Predicted,
    Report,
    Role,
    ServedJob,
    Token,
)
from wattsmith.terms.work import Interval, Setting

ABOUT = ClientAbout(version="0.1.0", host="rack-1", devices=(DeviceAbout(domain="gpu:0", name="NVIDIA H200"),))


def job_of(name: str = "train", *, by: str = "ann", **changes) -> ServedJob:
    given = {"written": "command: [python, train.py]", "state": JobState.WAITING, "submitted_s": 100.0}
    return ServedJob(**{"id": "", "name": name, "by": by, "command": ("python", "train.py"), **given, **changes})


def attempt_of(job: str, number: int = 1, **changes) -> Attempt:
    given = {"node": "here", "devices": (0, 1), "setting": Setting(power_limit_w=250.0), "started_s": 101.0}
    return Attempt(job=job, number=number, **{**given, **changes})


def ended(attempt: Attempt, *, exit_code: int = 0) -> dict:
    """ATTEMPT's fields once it has ended: to be given to `replace`."""
    return {
        "ended_s": attempt.started_s + 60.0,
        "result": JobResult(exit_code=exit_code, duration_s=60.0, energy_j=6_000.0),
    }


def report_of(number: int, *, boot: str = "monday", **changes) -> Report:
    domains = {"gpu:0": DomainReport(power_w=100.0 + number, energy_j=1_000.0 * number)}
    return Report(**{"boot": boot, "number": number, "time_s": 1_000.0 + number, "domains": domains, **changes})


def kept(client: str, number: int, *, received_s: float | None = None, **changes) -> KeptReport:
    """Report NUMBER of CLIENT, whose clock is two seconds ahead."""
    when_s = 998.0 + number if received_s is None else received_s
    return KeptReport(client=client, received_s=when_s, report=report_of(number, **changes))


def document_of(kind: str = "plan", key: str = "a", body=None, *, time_s: float = 1.0) -> Document:
    return Document(kind=kind, key=key, serial=0, time_s=time_s, by="ann", body={"n": 1} if body is None else body)


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True)
ratios = st.floats(0, 1)
intervals = (
    st.lists(numbers, min_size=3, max_size=3).map(sorted).map(lambda v: Interval(low=v[0], value=v[1], high=v[2]))
)
domain_reports = st.builds(
    DomainReport,
    power_w=maybe(positive),
    energy_j=maybe(positive),
    busy_ratio=maybe(ratios),
    memory_busy_ratio=maybe(ratios),
    memory_used_bytes=maybe(counts),
    clock_hz=maybe(positive),
    memory_clock_hz=maybe(positive),
    temperature_c=maybe(numbers),
    power_limit_w=maybe(positive),
    activity=st.dictionaries(texts, ratios, max_size=2),
)
any_reports = st.builds(
    Report,
    boot=names,
    number=some,
    time_s=numbers,
    domains=st.dictionaries(texts, domain_reports, max_size=2),
    steps=maybe(numbers),
    serial=maybe(counts),
    in_force=st.dictionaries(texts, settings_of_machines, max_size=2),
    refused=st.lists(texts, max_size=2).map(tuple),
)
any_predicted = st.builds(
    Predicted,
    duration_s=maybe(intervals),
    energy_j=maybe(intervals),
    power_w=maybe(intervals),
    memory_bytes=maybe(intervals),
    step_s=maybe(intervals),
    steps=maybe(numbers),
    device=maybe(texts),
    devices=maybe(counts),
    standing=maybe(texts),
    reasons=st.lists(texts, max_size=2).map(tuple),
)
any_jobs = st.builds(
    ServedJob,
    id=texts,
    name=names,
    by=texts,
    written=texts,
    state=st.just(JobState.WAITING),
    submitted_s=numbers,
    command=st.lists(texts, max_size=3).map(tuple),
    structure=maybe(texts),
    deadline_s=maybe(numbers),
    retries=counts,
    predicted=maybe(any_predicted),
    steps=maybe(numbers),
    reason=maybe(texts),
    ended_s=maybe(numbers),
    run=maybe(texts),
)
any_results = st.builds(
    JobResult,
    exit_code=maybe(st.integers(-64, 255)),
    duration_s=numbers,
    energy_j=maybe(numbers),
    energy_source=maybe(st.sampled_from(Source)),
    steps=maybe(numbers),
    peak_memory_bytes=maybe(counts),
    device=maybe(texts),
    simulated=st.booleans(),
    why=maybe(texts),
)
any_abouts = st.builds(
    ClientAbout,
    version=texts,
    host=texts,
    devices=st.lists(
        st.builds(
            DeviceAbout,
            domain=texts,
            name=texts,
            uuid=maybe(texts),
            memory_bytes=maybe(counts),
            power_limit_w=maybe(numbers),
            power_limit_range_w=maybe(st.tuples(numbers, numbers)),
            simulated=st.booleans(),
        ),
        max_size=2,
    ).map(tuple),
    knobs=st.lists(texts, max_size=2).map(tuple),
    simulated=st.booleans(),
)
any_tokens = st.builds(
    Token, id=texts, name=names, role=st.sampled_from(Role), created_s=numbers, revoked_s=maybe(numbers)
)
any_json = st.recursive(
    st.none() | st.booleans() | counts | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
