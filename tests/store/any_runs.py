"""Any run at all, which a store must give back unchanged."""

import itertools

from hypothesis import strategies as st

from wattsmith.terms.energy import Source
from wattsmith.terms.run import (
    Condition,
    Consumption,
    Device,
    OperatorCall,
    OperatorCount,
    Provenance,
    Run,
    Status,
    StepTimes,
    Structure,
)
from wattsmith.terms.work import Setting, Workload

_number = itertools.count()
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
counts = st.integers(0, 2**63 - 1)
some = st.integers(1, 2**63 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
parameters = st.one_of(st.integers(), numbers, st.booleans(), texts)


def maybe(values):
    return st.none() | values


workloads = st.builds(
    Workload,
    family=texts,
    parameters=st.dictionaries(texts, parameters, max_size=4),
    batch=some,
    kind=st.sampled_from(["network", "operator"]),
    precision=st.sampled_from(["fp32", "tf32", "bf16", "fp16"]),
    mode=st.sampled_from(["train", "infer"]),
    layout=st.sampled_from(["contiguous", "channels-last"]),
    compiled=st.booleans(),
    optimizer=maybe(texts),
    accumulation=some,
    devices=some,
)
settings_of_machines = st.builds(
    Setting,
    power_limit_w=maybe(positive),
    clock_hz=maybe(positive),
    memory_clock_hz=maybe(positive),
    cpu_clock_hz=maybe(positive),
    threads=maybe(some),
    concurrency=maybe(some),
)
operator_counts = st.builds(OperatorCount, calls=counts, flops=numbers, moved_bytes=numbers)
# Options stand in one column with their types: 1, 1.0 and True are three values, and a whole number has 64 bits.
options = st.one_of(counts, numbers, st.booleans(), texts, st.sampled_from([1, 1.0, True, "1", 0, 0.0, False]))
operator_calls = st.builds(
    OperatorCall,
    operator=texts,
    kind=texts,
    dtype=texts,
    shapes=st.lists(st.lists(counts, max_size=4).map(tuple), max_size=3).map(tuple),
    options=st.dictionaries(texts, options, max_size=3),
    calls=some,
    flops=numbers,
    moved_bytes=numbers,
    busy_s=maybe(numbers),
)
structures = st.builds(
    Structure,
    parameters=counts,
    parameter_bytes=counts,
    input_bytes=counts,
    flops=numbers,
    moved_bytes=numbers,
    launches=counts,
    peak_bytes=counts,
    conv_layers=counts,
    dense_layers=counts,
    conv_strength=numbers,
    dense_strength=numbers,
    operators=st.dictionaries(texts, operator_counts, max_size=3),
)
step_times = st.builds(
    StepTimes,
    steps=some,
    mean_s=positive,
    median_s=numbers,
    spread_s=numbers,
    error_ratio=numbers,
    first_s=numbers,
    busy_s=maybe(numbers),
    host_s=maybe(numbers),
    input_s=maybe(numbers),
)
consumptions = st.builds(
    Consumption,
    window_s=numbers,
    step_energy_j=maybe(numbers),
    step_energy_error_j=maybe(numbers),
    power_w=maybe(numbers),
    energy_source=maybe(st.sampled_from(Source)),
    peak_tensor_bytes=maybe(counts),
    peak_held_bytes=maybe(counts),
    storage_bytes=maybe(counts),
    simulated=st.booleans(),
)
conditions = st.builds(
    Condition,
    busy_ratio=maybe(numbers),
    clock_hz=maybe(numbers),
    memory_clock_hz=maybe(numbers),
    temperature_c=maybe(numbers),
    power_limit_w=maybe(numbers),
    throttled_by=maybe(st.lists(texts, max_size=3).map(tuple)),
)
devices = st.builds(Device, name=texts, kind=texts, memory_bytes=maybe(counts), simulated=st.booleans())
moments = st.datetimes(timezones=st.timezones(), allow_imaginary=False).map(lambda moment: moment.isoformat())


@st.composite
def any_run(draw) -> Run:
    """Any run at all, of a session that no other run has."""
    status = draw(st.sampled_from(Status))
    measured = status is Status.MEASURED
    return Run(
        workload=draw(workloads),
        device=draw(devices),
        setting=draw(settings_of_machines),
        status=status,
        provenance=Provenance(
            measured_at=draw(moments),
            session=f"{draw(texts)} {next(_number)}",
            hostname=draw(texts),
            device_id=draw(maybe(texts)),
            driver=draw(maybe(texts)),
            versions=draw(st.dictionaries(texts, texts, max_size=3)),
        ),
        reason=draw(maybe(texts) if measured else texts),
        structure=draw(maybe(structures)),
        times=draw(step_times if measured else maybe(step_times)),
        consumption=draw(consumptions if measured else maybe(consumptions)),
        condition=draw(maybe(conditions)),
        dataset_size=draw(maybe(counts)),
        input_shape=tuple(draw(st.lists(counts, max_size=4))),
        calls=tuple(draw(st.lists(operator_calls, max_size=3))),
    )
