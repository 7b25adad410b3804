"""Time of a training step on several devices, from the time of one device's work and the links between them.

Data parallel: each device has its own samples, and the gradients are added up in buckets while backward still runs.
Tensor parallel: several devices share each layer and add their parts of its result, forward and backward.
Pipeline parallel: devices hold different layers, and micro-batches pass through them one after the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.work import Interval, Prediction

SOURCES = ("measured", "data sheet", "assumed")
BUCKET_BYTES = 25 * 2**20  # what PyTorch's DistributedDataParallel gathers before it sends
BACKWARD_RATIO = 2 / 3  # of forward and backward: it computes gradients of inputs and of weights
FEWEST_POINTS = 2  # a link has two numbers

# One direction, as the makers state it: of all links of a device for NVLink, of 16 lanes for PCIe.
SHEET_BYTES_PER_S = {
    "nvlink2": 150e9,
    "nvlink3": 300e9,
    "nvlink4": 450e9,
    "nvlink5": 900e9,
    "pcie3": 15.75e9,
    "pcie4": 31.5e9,
    "pcie5": 63e9,
    "infiniband-hdr": 25e9,
    "infiniband-ndr": 50e9,
    "ethernet-10g": 1.25e9,
    "ethernet-25g": 3.125e9,
    "ethernet-100g": 12.5e9,
}
SHEET_REACHED_RATIO = 0.7  # two to eight A100 reach 218 of 300 GB/s (benchmarks/estimate_public/vtrain.py)
SHEET_LATENCY_S = 50e-6  # of a collective with its start; data sheets do not state it


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How one device reaches the others."""

    bandwidth_bytes_per_s: float  # what a device can send while it receives as much
    latency_s: float  # of one transfer or collective, however small
    source: str  # "measured", "data sheet" or "assumed"

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth_bytes_per_s < math.inf:
            raise BadTerm(f"bandwidth_bytes_per_s must be positive and finite, got {self.bandwidth_bytes_per_s}")
        if not 0 <= self.latency_s < math.inf:
            raise BadTerm(f"latency_s must be finite and not negative, got {self.latency_s}")
        if self.source not in SOURCES:
            raise BadTerm(f"source must be {' or '.join(map(repr, SOURCES))}, got {self.source!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredReduce:
    """One all-reduce that was timed."""

    payload_bytes: float  # held by each device
    devices: int
    duration_s: float

    def __post_init__(self) -> None:
        if self.payload_bytes <= 0:
            raise BadTerm(f"payload_bytes must be positive, got {self.payload_bytes}")
        if self.devices < 2:
            raise BadTerm(f"an all-reduce needs at least 2 devices, got {self.devices}")
        if not 0 < self.duration_s < math.inf:
            raise BadTerm(f"duration_s must be positive and finite, got {self.duration_s}")


def sheet_link(name: str) -> Link:
    """The link called NAME as its data sheet lets one expect it, for machines where none was timed."""
    if name not in SHEET_BYTES_PER_S:
        raise BadInput(f"no data sheet of a link called {name!r}; known are {', '.join(SHEET_BYTES_PER_S)}")
    reached = SHEET_REACHED_RATIO * SHEET_BYTES_PER_S[name]
    return Link(bandwidth_bytes_per_s=reached, latency_s=SHEET_LATENCY_S, source="data sheet")


def usual_link(architecture: str, name: str) -> Link:
    """What usually joins such devices in one machine, by data sheet; NAME says if they are made for more than PCIe."""
    switched = {"Blackwell": "nvlink5", "Hopper": "nvlink4", "Ampere": "nvlink3", "Volta": "nvlink2"}
    made_so = any(word in name for word in ("SXM", "H200", "GH200", "B200", "NVL"))
    if made_so and architecture in switched:
        return sheet_link(switched[architecture])
    return sheet_link(
        {"Hopper": "pcie5", "Blackwell": "pcie5", "Ada": "pcie4", "Ampere": "pcie4"}.get(architecture, "pcie3")
    )


def all_reduce_s(payload_bytes: float, devices: int, link: Link) -> float:
    """Time until each of DEVICES holds the sum of what all had, PAYLOAD_BYTES each. One device needs none."""
    if devices < 1:
        raise BadTerm(f"devices must be at least 1, got {devices}")
    if payload_bytes < 0:
        raise BadTerm(f"payload_bytes must not be negative, got {payload_bytes}")
    if devices == 1 or payload_bytes == 0:
        return 0.0
    return link.latency_s + wire_bytes(payload_bytes, devices) / link.bandwidth_bytes_per_s


def wire_bytes(payload_bytes: float, devices: int) -> float:
    """What each device sends in an all-reduce: every algorithm that uses all links sends at least this."""
    return 2 * (devices - 1) / devices * payload_bytes


def send_s(payload_bytes: float, link: Link) -> float:
    """Time to hand PAYLOAD_BYTES from one device to another."""
    return link.latency_s + payload_bytes / link.bandwidth_bytes_per_s if payload_bytes else 0.0


def calibrate_link(points: Sequence[MeasuredReduce]) -> Link:
    """The link that explains POINTS with the least relative error; neither of its numbers is negative."""
    if len({wire_bytes(point.payload_bytes, point.devices) for point in points}) < FEWEST_POINTS:
        raise BadInput(
            f"a link needs all-reduces of at least {FEWEST_POINTS} sizes, but {len(points)} timing(s) are given that "
            "send the same; time a small one (1 MiB) and a large one (256 MiB)"
        )
    # Divided by the duration, so that small transfers count as much as large ones.
    starts = [1 / point.duration_s for point in points]
    sent = [wire_bytes(point.payload_bytes, point.devices) / point.duration_s for point in points]
    latency_s, s_per_byte = _two_not_negative(starts, sent)
    if s_per_byte <= 0:
        raise BadInput("these timings do not grow with the bytes sent, so they tell no bandwidth; time larger ones")
    return Link(bandwidth_bytes_per_s=1 / s_per_byte, latency_s=latency_s, source="measured")


def _two_not_negative(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """x and y, neither below zero, that bring x·FIRST + y·SECOND nearest to 1 everywhere, by least squares."""
    a, b = sum(first), sum(second)
    aa, bb = sum(f * f for f in first), sum(s * s for s in second)
    ab = sum(f * s for f, s in zip(first, second, strict=True))
    determinant = aa * bb - ab * ab
    x, y = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if x < 0:
        return 0.0, b / bb
    return (a / aa, 0.0) if y < 0 else (x, y)


def data_parallel_step_s(
    step_s: float,
    backward_s: float,
    gradient_bytes: float,
    devices: int,
    link: Link,
    bucket_bytes: float = BUCKET_BYTES,
) -> float:
    """Time of a step on DEVICES replicas, each of which alone takes STEP_S, BACKWARD_S of it in backward."""
    if not 0 <= backward_s <= step_s:
        raise BadTerm(f"backward_s must lie between 0 and step_s ({step_s}), got {backward_s}")
    return step_s + exposed_reduce_s(backward_s, gradient_bytes, devices, link, bucket_bytes)


def exposed_reduce_s(
    backward_s: float,
    gradient_bytes: float,
    devices: int,
    link: Link,
    bucket_bytes: float = BUCKET_BYTES,
) -> float:
    """How much longer than backward the adding-up of gradients takes, when each bucket leaves as soon as it is full.

    Buckets fill at an even pace, the last one as backward ends; the link carries one at a time. With a
    BACKWARD_S of 0 nothing overlaps.
    """
    if bucket_bytes <= 0:
        raise BadTerm(f"bucket_bytes must be positive, got {bucket_bytes}")
    if devices == 1 or gradient_bytes == 0:
        return 0.0
    buckets = max(1, math.ceil(gradient_bytes / bucket_bytes))
    each_s = all_reduce_s(gradient_bytes / buckets, devices, link)
    # Either the link keeps up and only the last bucket is left when backward ends, or it is busy
    # without a pause from the moment the first bucket is full.
    return max(each_s, buckets * each_s - backward_s * (1 - 1 / buckets))


def on_devices(
    alone: Prediction, devices: int, gradient_bytes: float, link: Link, backward_ratio: float = BACKWARD_RATIO
) -> Prediction:
    """What is predicted for one device ALONE, for DEVICES replicas: power and energy are those of all together.

    BACKWARD_RATIO is backward's share of the step. A link that nobody timed may be half as fast as it is said to be,
    and may hide all that it sends; the interval of the step reaches from one to the other.
    """
    if devices == 1:
        return alone
    if alone.step_s is None:
        raise BadTerm("the step of one device must be predicted before that of several")

    def together_s(step_s: float, via: Link) -> float:
        return data_parallel_step_s(step_s, backward_ratio * step_s, gradient_bytes, devices, via)

    slow = link if link.source == "measured" else replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / 2)
    one = alone.step_s
    step_s = Interval(
        value=together_s(one.value, link),
        low=together_s(one.low, link) if link.source == "measured" else one.low,
        high=together_s(one.high, slow),
    )
    # While a device waits for the others it draws less than while it works, but never less than nothing.
    power_w = alone.power_w and Interval(
        value=devices * alone.power_w.value,
        low=devices * alone.power_w.low * (one.low / step_s.value if step_s.value else 1.0),
        high=devices * alone.power_w.high,
    )
    energy_j = alone.step_energy_j and Interval(
        value=devices * alone.step_energy_j.value * _longer_ratio(step_s.value, one.value),
        low=devices * alone.step_energy_j.low,
        high=devices * alone.step_energy_j.high * _longer_ratio(step_s.high, one.high),
    )
    return replace(alone, step_s=step_s, power_w=power_w, step_energy_j=energy_j, **_doubt(alone, link))


def _longer_ratio(together_s: float, alone_s: float) -> float:
    return together_s / alone_s if alone_s > 0 else 1.0


def _doubt(alone: Prediction, link: Link) -> dict[str, Any]:
    if link.source == "measured":
        return {}
    why = f"the link is {'as its data sheet says' if link.source == 'data sheet' else 'assumed'}, not timed"
    return {"inside_record": False, "why_doubtful": f"{alone.why_doubtful}; {why}" if alone.why_doubtful else why}


def pipeline_s(stages_s: Sequence[float], micro_batches: int) -> float:
    """Time for MICRO_BATCHES to pass forward and backward through stages that take STAGES_S for each.

    The first passes through all stages; the others follow at the pace of the slowest. With equal stages this is
    the familiar bubble of (stages - 1) / micro_batches.
    """
    if not stages_s:
        raise BadTerm("a pipeline needs at least one stage")
    if micro_batches < 1:
        raise BadTerm(f"micro_batches must be at least 1, got {micro_batches}")
    return sum(stages_s) + (micro_batches - 1) * max(stages_s)


def layers_by_stage(layers: int, stages: int) -> tuple[int, ...]:
    """LAYERS shared out as evenly as can be, the first stages taking what is left over."""
    if not 1 <= stages <= layers:
        raise BadTerm(f"{layers} layers cannot be shared out over {stages} stages: use 1 to {layers}")
    each, left = divmod(layers, stages)
    return tuple(each + (stage < left) for stage in range(stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a step is shared out. Neighbouring devices share tensors, then data; pipeline stages are farthest apart."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    micro_batches: int = 1  # per replica and step

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise BadTerm(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def devices(self) -> int:
        return self.data * self.tensor * self.pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Links inside a machine and, where there are several, from device to device between machines."""

    inside: Link
    between: Link | None = None  # of one device's own adapter
    devices_per_machine: int | None = None  # None: all devices are in one

    def __post_init__(self) -> None:
        if self.devices_per_machine is not None and self.devices_per_machine < 1:
            raise BadTerm(f"devices_per_machine must be at least 1, got {self.devices_per_machine}")
        if (self.between is None) != (self.devices_per_machine is None):
            raise BadTerm("several machines need both a link between them and devices_per_machine")


def link_of_group(cluster: Cluster, members: int, stride: int) -> Link:
    """The link as MEMBERS devices see it that stand STRIDE apart."""
    if cluster.between is None or cluster.devices_per_machine is None:
        return cluster.inside
    together = max(1, cluster.devices_per_machine // stride)
    if members <= together and (members - 1) * stride < cluster.devices_per_machine:
        return cluster.inside
    # Members in one machine drive their adapters side by side, as far as the links inside can feed them.
    bandwidth = min(cluster.inside.bandwidth_bytes_per_s, together * cluster.between.bandwidth_bytes_per_s)
    return Link(bandwidth_bytes_per_s=bandwidth, latency_s=cluster.between.latency_s, source=cluster.between.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """What one device has to do, with its share of each layer, for one micro-batch unless said otherwise."""

    layers: int  # of the whole network
    layer_s: float  # forward and backward, and forward again where it is recomputed; without communication
    first_s: float = 0.0  # before the first layer: embedding
    last_s: float = 0.0  # after the last layer: output and loss
    update_s: float = 0.0  # once per step
    boundary_bytes: float = 0.0  # what one layer hands to the next
    reduces_per_layer: int = 4  # of boundary_bytes, among devices that share tensors: two forward, two backward
    gradient_bytes: float = 0.0  # held by the device, once per step
    overlapped_s: float = 0.0  # the part of backward during which gradients may already travel

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise BadTerm(f"layers must be at least 1, got {self.layers}")
        for name in self.__dataclass_fields__:
            if not 0 <= getattr(self, name) < math.inf:
                raise BadTerm(f"{name} must be finite and not negative, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelStep:
    """Where the time of a step on several devices goes, seen from its busiest device."""

    work_s: float  # computing
    tensor_s: float  # adding up parts of layers
    bubble_s: float  # waiting for other pipeline stages, and handing on to them
    data_s: float  # adding up gradients, as far as backward does not hide it
    update_s: float
    links: tuple[Link, ...] = field(default=())  # those that were used

    @property
    def step_s(self) -> float:
        return self.work_s + self.tensor_s + self.bubble_s + self.data_s + self.update_s


def parallel_step(work: DeviceWork, split: Split, cluster: Cluster) -> ParallelStep:
    """The time of one step of WORK, shared out as SPLIT says, on CLUSTER."""
    tensor_link = link_of_group(cluster, split.tensor, 1)
    data_link = link_of_group(cluster, split.data, split.tensor)
    stage_link = link_of_group(cluster, split.pipeline, split.tensor * split.data)
    reduce_s = work.reduces_per_layer * all_reduce_s(work.boundary_bytes, split.tensor, tensor_link)
    hand_on_s = 2 * send_s(work.boundary_bytes, stage_link) if split.pipeline > 1 else 0.0  # there, and gradients back
    counts = layers_by_stage(work.layers, split.pipeline)
    computing_s = [count * work.layer_s for count in counts]
    computing_s[0] += work.first_s
    computing_s[-1] += work.last_s
    stages_s = [own_s + count * reduce_s for own_s, count in zip(computing_s, counts, strict=True)]
    busiest = max(range(len(stages_s)), key=stages_s.__getitem__)
    # A pipeline has one hand-over less than it has stages.
    passing_s = pipeline_s([own_s + hand_on_s for own_s in stages_s], split.micro_batches) - hand_on_s
    used = [(split.tensor, tensor_link), (split.data, data_link), (split.pipeline, stage_link)]
    return ParallelStep(
        work_s=split.micro_batches * computing_s[busiest],
        tensor_s=split.micro_batches * counts[busiest] * reduce_s,
        bubble_s=passing_s - split.micro_batches * stages_s[busiest],
        data_s=exposed_reduce_s(work.overlapped_s, work.gradient_bytes, split.data, data_link),
        update_s=work.update_s,
        links=tuple(dict.fromkeys(link for members, link in used if members > 1)),
    )
