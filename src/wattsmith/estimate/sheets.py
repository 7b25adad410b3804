"""Data sheets of devices: what their makers say they can do at most.

Peaks are dense (without sparsity), at boost clock, in the arithmetic that PyTorch uses for that precision by default:
"fp32" on the ordinary units, "tf32", "bf16" and "fp16" on the matrix units where the device has them. Where it has no
fast path, the entry is missing and `peak` falls back to the next one that the device would really use. Figures come
from the maker's data sheet or architecture paper, named in `source`; small differences between editions do not matter
here, because every efficiency is fitted on top of them.

What matters between devices is how far each one's peak is from what it can hold. Three published facts say most of it:
the base clock, at which it is sure to run within its power; whether memory checks its errors with ordinary accesses (by
NVIDIA's "CUDA C++ Best Practices Guide" that takes about a fifth of the bandwidth of GDDR, and nothing of HBM); and
whether its schedulers can feed all its arithmetic units (Kepler's feed 128 of 192 unless instructions come in pairs).
`sustained_flops` and `sustained_bandwidth` take them into account.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from wattsmith.terms.errors import BadTerm

TERA = 1e12
GIGA = 1e9
MEGA = 1e6
MEBI = 2**20
GIBI = 2**30

CHECKING_COSTS = 0.2  # share of bandwidth that error checking takes where it goes through ordinary accesses
USUAL_BASE_RATIO = 0.7  # of base to boost clock, where a maker does not tell

FALLS_BACK = {"tf32": "fp32", "bf16": "fp32", "fp16": "fp32"}  # without matrix units for it, casts only save bytes


class UnknownDevice(BadTerm):
    """No data sheet goes by that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSheet:
    """What a device can do at most, by its maker's word."""

    name: str
    vendor: str
    architecture: str
    peak_flops: Mapping[str, float]  # per second, by precision
    bandwidth: float  # of memory, bytes per second
    memory_bytes: int
    l2_bytes: int
    units: int  # streaming multiprocessors, or compute units
    tdp_w: float
    source: str
    base_clock_hz: float | None = None  # None: not published
    boost_clock_hz: float | None = None
    checks_in_band: bool = False  # error correction takes memory bandwidth, and is on unless turned off
    issue_ratio: float = 1.0  # of the arithmetic units, those that the schedulers can feed
    idle_w: float | None = None  # None: not known
    aliases: tuple[str, ...] = field(default=(), repr=False)  # other names, as words

    def peak(self, precision: str) -> float:
        """FLOP/s that products can reach in PRECISION, where "fp32" is meant without tf32."""
        if precision in self.peak_flops:
            return self.peak_flops[precision]
        return self.peak_flops[FALLS_BACK.get(precision, "fp32")]

    def sustained_flops(self, precision: str) -> float:
        """FLOP/s to expect under lasting load: half-way, by ratio, between what base and boost clock give."""
        if self.base_clock_hz is None or self.boost_clock_hz is None:
            ratio = USUAL_BASE_RATIO
        else:
            ratio = self.base_clock_hz / self.boost_clock_hz
        return self.peak(precision) * self.issue_ratio * math.sqrt(ratio)

    @property
    def sustained_bandwidth(self) -> float:
        """Bytes per second that are left when memory checks its errors."""
        return self.bandwidth * (1 - CHECKING_COSTS) if self.checks_in_band else self.bandwidth


def _sheet(
    name: str,
    architecture: str,
    *,
    fp32: float,
    matrix: Mapping[str, float] | None = None,
    gbytes: float,
    gib: float,
    l2_mib: float,
    units: int,
    tdp_w: float,
    source: str,
    mhz: tuple[float, float] | None = None,
    checks_in_band: bool = False,
    issue_ratio: float = 1.0,
    aliases: tuple[str, ...] = (),
    vendor: str = "NVIDIA",
) -> DataSheet:
    """A sheet from figures as they are printed: TFLOP/s, GB/s, GiB, MiB, and MHz at base and at boost."""
    peaks = {"fp32": fp32, **(matrix or {})}
    return DataSheet(
        name=name,
        vendor=vendor,
        architecture=architecture,
        peak_flops={precision: tera * TERA for precision, tera in peaks.items()},
        bandwidth=gbytes * GIGA,
        memory_bytes=int(gib * GIBI),
        l2_bytes=int(l2_mib * MEBI),
        units=units,
        tdp_w=tdp_w,
        source=source,
        base_clock_hz=mhz[0] * MEGA if mhz else None,
        boost_clock_hz=mhz[1] * MEGA if mhz else None,
        checks_in_band=checks_in_band,
        issue_ratio=issue_ratio,
        aliases=aliases,
    )


def _half(tera: float, tf32: float | None = None, *, bf16: bool = True) -> dict[str, float]:
    """Matrix units that do fp16 at TERA, and bf16 alike where they know it."""
    known = {"fp16": tera, "bf16": tera} if bf16 else {"fp16": tera}
    return known if tf32 is None else {**known, "tf32": tf32}


# More particular names stand before more general ones: the first that fits a name is taken.
SHEETS: tuple[DataSheet, ...] = (
    _sheet("NVIDIA H200 NVL", "Hopper", fp32=60.3, matrix=_half(835.5, 417.5), gbytes=4800, gib=141, l2_mib=50,
           units=132, mhz=(1365, 1785), tdp_w=600, source="NVIDIA H200 data sheet, NVL", aliases=("h200 nvl",)),
    _sheet("NVIDIA H200", "Hopper", fp32=66.9, matrix=_half(989.4, 494.7), gbytes=4800, gib=141, l2_mib=50, units=132,
           mhz=(1590, 1980), tdp_w=700, source="NVIDIA H200 data sheet, SXM", aliases=("h200",)),
    _sheet("NVIDIA GH200", "Hopper", fp32=66.9, matrix=_half(989.4, 494.7), gbytes=4000, gib=96, l2_mib=50, units=132,
           tdp_w=700, source="NVIDIA GH200 data sheet, 96 GB", aliases=("gh200",)),
    _sheet("NVIDIA H100 NVL", "Hopper", fp32=60.3, matrix=_half(835.5, 417.5), gbytes=3938, gib=94, l2_mib=50,
           units=132, mhz=(1080, 1785), tdp_w=400, source="NVIDIA H100 data sheet, NVL", aliases=("h100 nvl",)),
    _sheet("NVIDIA H100 PCIe", "Hopper", fp32=51.2, matrix=_half(756.4, 378.2), gbytes=2039, gib=80, l2_mib=50,
           units=114, mhz=(1095, 1755), tdp_w=350, source="NVIDIA H100 data sheet, PCIe", aliases=("h100 pcie",)),
    _sheet("NVIDIA H100 SXM", "Hopper", fp32=66.9, matrix=_half(989.4, 494.7), gbytes=3352, gib=80, l2_mib=50,
           units=132, mhz=(1590, 1980), tdp_w=700, source="NVIDIA H100 data sheet, SXM5",
           aliases=("h100 hbm3", "h100")),
    _sheet("NVIDIA B200", "Blackwell", fp32=80, matrix=_half(2250, 1125), gbytes=8000, gib=180, l2_mib=126, units=148,
           tdp_w=1000, source="NVIDIA DGX B200 data sheet", aliases=("b200",)),
    _sheet("NVIDIA A100 SXM4 80GB", "Ampere", fp32=19.5, matrix=_half(311.9, 156.0), gbytes=2039, gib=80, l2_mib=40,
           units=108, mhz=(1275, 1410), tdp_w=400, source="NVIDIA A100 data sheet",
           aliases=("a100 sxm4 80gb", "a100 sxm 80gb")),
    _sheet("NVIDIA A100 PCIe 80GB", "Ampere", fp32=19.5, matrix=_half(311.9, 156.0), gbytes=1935, gib=80, l2_mib=40,
           units=108, mhz=(1065, 1410), tdp_w=300, source="NVIDIA A100 data sheet", aliases=("a100 80gb",)),
    _sheet("NVIDIA A100 PCIe 40GB", "Ampere", fp32=19.5, matrix=_half(311.9, 156.0), gbytes=1555, gib=40, l2_mib=40,
           units=108, mhz=(765, 1410), tdp_w=250, source="NVIDIA A100 data sheet", aliases=("a100 pcie",)),
    _sheet("NVIDIA A100 SXM4 40GB", "Ampere", fp32=19.5, matrix=_half(311.9, 156.0), gbytes=1555, gib=40, l2_mib=40,
           units=108, mhz=(1095, 1410), tdp_w=400, source="NVIDIA A100 data sheet", aliases=("a100",)),
    _sheet("NVIDIA A30", "Ampere", fp32=10.3, matrix=_half(165.1, 82.6), gbytes=933, gib=24, l2_mib=24, units=56,
           mhz=(930, 1440), tdp_w=165, source="NVIDIA A30 data sheet", aliases=("a30",)),
    _sheet("NVIDIA A40", "Ampere", fp32=37.4, matrix=_half(149.7, 74.8), gbytes=696, gib=48, l2_mib=6, units=84,
           mhz=(1305, 1740), checks_in_band=True, tdp_w=300, source="NVIDIA A40 data sheet", aliases=("a40",)),
    _sheet("NVIDIA A10G", "Ampere", fp32=31.5, matrix=_half(70.0, 35.0), gbytes=600, gib=24, l2_mib=6, units=80,
           mhz=(1320, 1710), checks_in_band=True, tdp_w=300, source="AWS G5 instances; NVIDIA A10G", aliases=("a10g",)),
    _sheet("NVIDIA A10", "Ampere", fp32=31.2, matrix=_half(125.0, 62.5), gbytes=600, gib=24, l2_mib=6, units=72,
           mhz=(885, 1695), checks_in_band=True, tdp_w=150, source="NVIDIA A10 data sheet", aliases=("a10",)),
    _sheet("NVIDIA RTX A6000", "Ampere", fp32=38.7, matrix=_half(154.8, 77.4), gbytes=768, gib=48, l2_mib=6, units=84,
           mhz=(1410, 1800), tdp_w=300, source="NVIDIA RTX A6000 data sheet", aliases=("a6000",)),
    _sheet("NVIDIA L40S", "Ada", fp32=91.6, matrix=_half(362.1, 183.0), gbytes=864, gib=48, l2_mib=96, units=142,
           mhz=(1110, 2520), checks_in_band=True, tdp_w=350, source="NVIDIA L40S data sheet", aliases=("l40s",)),
    _sheet("NVIDIA L40", "Ada", fp32=90.5, matrix=_half(181.1, 90.5), gbytes=864, gib=48, l2_mib=96, units=142,
           mhz=(735, 2490), checks_in_band=True, tdp_w=300, source="NVIDIA L40 data sheet", aliases=("l40",)),
    _sheet("NVIDIA L4", "Ada", fp32=30.3, matrix=_half(121.0, 60.0), gbytes=300, gib=24, l2_mib=48, units=58,
           mhz=(795, 2040), checks_in_band=True, tdp_w=72, source="NVIDIA L4 data sheet", aliases=("l4",)),
    _sheet("NVIDIA RTX PRO 6000 Blackwell Max-Q", "Blackwell", fp32=110.0, matrix=_half(438.0, 219.0), gbytes=1792,
           gib=96, l2_mib=128, units=188, tdp_w=300, source="NVIDIA RTX PRO 6000 Max-Q data sheet",
           aliases=("pro 6000 max q", "pro6000maxq", "pro 6000 blackwell max q")),
    _sheet("NVIDIA RTX PRO 6000 Blackwell", "Blackwell", fp32=125.0, matrix=_half(503.8, 251.9), gbytes=1792, gib=96,
           l2_mib=128, units=188, mhz=(1590, 2617), tdp_w=600, source="NVIDIA RTX PRO 6000 data sheet",
           aliases=("pro 6000", "pro6000")),
    _sheet("NVIDIA RTX 6000 Ada", "Ada", fp32=91.1, matrix=_half(364.2, 182.1), gbytes=960, gib=48, l2_mib=96,
           units=142, mhz=(915, 2505), tdp_w=300, source="NVIDIA RTX 6000 Ada data sheet", aliases=("6000 ada",)),
    _sheet("Quadro RTX 6000", "Turing", fp32=16.3, matrix=_half(130.5, bf16=False), gbytes=672, gib=24, l2_mib=6,
           units=72, mhz=(1440, 1770), tdp_w=260, source="NVIDIA Quadro RTX 6000 data sheet",
           aliases=("rtx 6000", "rtx6000")),
    _sheet("NVIDIA GeForce RTX 5090", "Blackwell", fp32=104.8, matrix=_half(209.5, 104.8), gbytes=1792, gib=32,
           l2_mib=96, units=170, mhz=(2017, 2407), tdp_w=575,
           source="NVIDIA RTX Blackwell architecture paper; fp32 accumulation", aliases=("rtx 5090", "5090")),
    _sheet("NVIDIA GeForce RTX 4090", "Ada", fp32=82.6, matrix=_half(165.2, 82.6), gbytes=1008, gib=24, l2_mib=72,
           units=128, mhz=(2235, 2520), tdp_w=450, source="NVIDIA Ada architecture paper; fp32 accumulation",
           aliases=("rtx 4090", "4090")),
    _sheet("NVIDIA GeForce RTX 3090", "Ampere", fp32=35.6, matrix=_half(71.2, 35.6), gbytes=936, gib=24, l2_mib=6,
           units=82, mhz=(1395, 1695), tdp_w=350, source="NVIDIA GA102 architecture paper; fp32 accumulation",
           aliases=("rtx 3090", "3090")),
    _sheet("NVIDIA GeForce RTX 2080 Ti", "Turing", fp32=13.4, matrix=_half(53.8, bf16=False), gbytes=616, gib=11,
           l2_mib=5.5, units=68, mhz=(1350, 1545), tdp_w=250,
           source="NVIDIA Turing architecture paper; fp32 accumulation", aliases=("2080 ti", "2080ti")),
    _sheet("Tesla V100 SXM2", "Volta", fp32=15.7, matrix=_half(125.3, bf16=False), gbytes=900, gib=16, l2_mib=6,
           units=80, mhz=(1290, 1530), tdp_w=300, source="NVIDIA V100 data sheet, SXM2",
           aliases=("v100 sxm2", "v100 sxm3")),
    _sheet("Tesla V100 PCIe", "Volta", fp32=14.1, matrix=_half(112.2, bf16=False), gbytes=900, gib=16, l2_mib=6,
           units=80, mhz=(1230, 1380), tdp_w=250, source="NVIDIA V100 data sheet, PCIe", aliases=("v100",)),
    _sheet("Tesla T4", "Turing", fp32=8.1, matrix=_half(65.1, bf16=False), gbytes=320, gib=16, l2_mib=4, units=40,
           mhz=(585, 1590), checks_in_band=True, tdp_w=70, source="NVIDIA T4 data sheet", aliases=("t4",)),
    _sheet("Tesla P100 PCIe", "Pascal", fp32=9.5, matrix=_half(19.0, bf16=False), gbytes=732, gib=16, l2_mib=4,
           units=56, mhz=(1190, 1329), tdp_w=250, source="NVIDIA P100 data sheet, PCIe 16 GB", aliases=("p100",)),
    _sheet("Tesla P4", "Pascal", fp32=5.5, gbytes=192, gib=8, l2_mib=2, units=20, mhz=(886, 1114), checks_in_band=True,
           tdp_w=75, source="NVIDIA P4 data sheet", aliases=("p4",)),
    _sheet("Tesla M60", "Maxwell", fp32=4.8, gbytes=160, gib=8, l2_mib=2, units=16, mhz=(557, 1178), tdp_w=150,
           source="NVIDIA M60 data sheet, one of its two GPUs", aliases=("m60",)),
    _sheet("Tesla K80", "Kepler", fp32=4.4, gbytes=240, gib=12, l2_mib=1.5, units=13, mhz=(562, 875),
           checks_in_band=True, issue_ratio=128 / 192, tdp_w=150, source="NVIDIA K80 data sheet, one of its two GPUs",
           aliases=("k80",)),
    _sheet("AMD Instinct MI300X", "CDNA 3", vendor="AMD", fp32=163.4, matrix=_half(1307.4, 653.7), gbytes=5300, gib=192,
           l2_mib=256, units=304, mhz=(1000, 2100), tdp_w=750,
           source="AMD Instinct MI300X data sheet; L2: Infinity Cache", aliases=("mi300x", "mi300")),
    _sheet("AMD Instinct MI250X", "CDNA 2", vendor="AMD", fp32=47.9, matrix=_half(191.5), gbytes=1638, gib=64, l2_mib=8,
           units=110, mhz=(1000, 1700), tdp_w=280, source="AMD Instinct MI250X data sheet, one of its two dies",
           aliases=("mi250x",)),
    _sheet("AMD Instinct MI250", "CDNA 2", vendor="AMD", fp32=45.3, matrix=_half(181.1), gbytes=1638, gib=64, l2_mib=8,
           units=104, mhz=(1000, 1700), tdp_w=280, source="AMD Instinct MI250 data sheet, one of its two dies",
           aliases=("mi250",)),
    _sheet("AMD Instinct MI210", "CDNA 2", vendor="AMD", fp32=45.3, matrix=_half(181.0), gbytes=1638, gib=64, l2_mib=8,
           units=104, mhz=(1000, 1700), tdp_w=300, source="AMD Instinct MI210 data sheet; fp32 on the matrix units",
           aliases=("mi210",)),
    _sheet("AMD Instinct MI100", "CDNA", vendor="AMD", fp32=46.1, matrix={"fp16": 184.6, "bf16": 92.3}, gbytes=1229,
           gib=32, l2_mib=8, units=120, mhz=(1000, 1502), tdp_w=300,
           source="AMD Instinct MI100 data sheet; fp32 on the matrix units", aliases=("mi100",)),
    _sheet("Jetson AGX Orin 64GB", "Ampere", fp32=5.3, matrix=_half(42.5, 21.2), gbytes=204.8, gib=64, l2_mib=4,
           units=16, tdp_w=60, source="NVIDIA Jetson AGX Orin data sheet; matrix units without sparsity",
           aliases=("agx orin", "orin")),
    _sheet("Jetson Orin Nano 8GB", "Ampere", fp32=1.28, matrix=_half(10.2, 5.1), gbytes=68.0, gib=8, l2_mib=2, units=8,
           tdp_w=15, source="NVIDIA Jetson Orin Nano data sheet", aliases=("orin nano",)),
)  # fmt: skip


def sheet_of(name: str) -> DataSheet:
    """The data sheet of the device that goes by NAME, as a driver or a person writes it.

    Every word of one of a sheet's names must be in NAME; of several that fit, the most particular one is taken.
    """
    words = _words(name)
    fitting = [
        (len(alias.split()), len(alias), -at, sheet)
        for at, sheet in enumerate(SHEETS)
        for alias in (*sheet.aliases, " ".join(_words(sheet.name)))
        if set(alias.split()) <= set(words)
    ]
    if not fitting:
        known = [sheet.name for sheet in SHEETS]
        near = difflib.get_close_matches(" ".join(words), [one.lower().removeprefix("nvidia ") for one in known], n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UnknownDevice(f"no data sheet goes by {name!r}.{hint} Known devices: {', '.join(known)}")
    return max(fitting, key=lambda one: one[:3])[3]


def _words(name: str) -> list[str]:
    """The words of a device's name, in small letters, with "a10080gb" and "h100-80gb" taken apart."""
    text = re.sub(r"[^a-z0-9]+", " ", name.lower())
    text = re.sub(r"\brtx(?=\d)", "rtx ", text)
    return text.split()
