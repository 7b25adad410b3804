"""What a simulated GPU is: clocks, limits, power model, sensor. The defaults are an H200 as measured."""

from collections.abc import Mapping
from dataclasses import dataclass

from wattsmith.terms.errors import BadTerm

MAX_MEMORY_CLOCKS, MAX_MIGS = 8, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """A GPU to simulate. The defaults are an H200 as measured: full load at full clocks draws 700 W, idle 100 W."""

    name: str = "NVIDIA H200"
    architecture: int = 9  # as NVML numbers them: 4 Pascal, 5 Volta, 7 Ampere, 9 Hopper
    cuda_capability: tuple[int, int] = (9, 0)
    brand: int = 14
    pci_device_id: int = 0x233510DE
    cores: int = 16_896
    multiprocessors: int = 132
    memory_bus_bits: int = 6_144
    memory_bytes: int = 143_771 * 2**20
    memory_used_bytes: int = 0
    mig: tuple[str, ...] = ()  # "1g.18gb" and so on: the GPU is split into these

    clock_min_hz: float = 345e6
    clock_max_hz: float = 1_980e6
    clock_step_hz: float = 15e6
    memory_clocks_hz: tuple[float, ...] = (3_201e6,)  # highest first
    limit_min_w: float = 200.0
    limit_max_w: float = 700.0
    limit_default_w: float = 700.0

    idle_w: float = 100.0
    sm_w: float = 550.0  # of the SMs at full load and full clock
    memory_w: float = 50.0  # of the memory at full load and full clock
    voltage_floor_ratio: float = 0.6
    ambient_c: float = 25.0
    kelvin_per_w: float = 0.06
    thermal_s: float = 20.0  # time constant

    sensor_period_s: float = 0.020  # one power sample so often
    sensor_window_s: float = 0.025  # each the mean over so long before it; less than the period: the rest goes unseen
    sensor_jitter_s: float = 0.0  # a sample comes up to so much late
    sensor_gain: float = 1.0  # power readings over the truth; the counter is not affected
    sensor_noise_w: float = 0.0  # power readings scatter up to so much around the truth; the counter does not
    sample_capacity: int = 119
    instant_period_s: float = 0.100  # instant and average power change so often
    average_window_s: float = 1.0
    counter_period_s: float = 0.100  # the energy counter moves so often
    counter_read_s: float = 0.003  # a reading of the counter spins for so long
    samples_read_s: float = 0.0003
    has_counter: bool = True
    has_samples: bool = True
    has_instant_field: bool = True  # POWER_INSTANT
    has_average_field: bool = True  # POWER_AVERAGE
    has_gpm: bool = True

    sm_ratio: float = 0.95  # what GPM says at full load
    occupancy_ratio: float = 0.14
    tensor_ratio: float = 0.90
    dram_ratio: float = 0.16

    def __post_init__(self) -> None:
        for name in ("sensor_period_s", "sensor_window_s", "instant_period_s", "counter_period_s", "thermal_s"):
            if getattr(self, name) <= 0:
                raise BadTerm(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.sensor_jitter_s < self.sensor_period_s:
            raise BadTerm(f"sensor_jitter_s must lie in 0 … sensor_period_s, got {self.sensor_jitter_s}")
        if not 1 <= len(self.memory_clocks_hz) <= MAX_MEMORY_CLOCKS or len(self.mig) > MAX_MIGS:
            raise BadTerm("a GPU has 1 … 8 memory clocks and at most 7 MIG devices")
        least_w = self.full_load_w(self.clock_min_hz, self.memory_clocks_hz[0]) + self.idle_w
        if not least_w <= self.limit_min_w <= self.limit_default_w <= self.limit_max_w:
            raise BadTerm(
                f"at full load and its lowest clock this GPU draws {least_w:.0f} W, so it cannot be held to "
                f"limits of {self.limit_min_w} … {self.limit_default_w} … {self.limit_max_w} W; raise limit_min_w"
            )

    def full_load_w(self, clock_hz: float, memory_clock_hz: float) -> float:
        """What full load adds to idle_w at these clocks, where no limit binds."""
        x, y = clock_hz / self.clock_max_hz, memory_clock_hz / self.memory_clocks_hz[0]
        voltage_ratio = self.voltage_floor_ratio + (1 - self.voltage_floor_ratio) * x
        return self.sm_w * x * voltage_ratio**2 + self.memory_w * y


PROFILES: Mapping[str, GpuProfile] = {
    "h200": GpuProfile(),
    # Its sensor looks at a quarter of the time. Real ones have one memory clock; the second is there to be chosen.
    "a100": GpuProfile(
        name="NVIDIA A100-SXM4-80GB",
        architecture=7,
        cuda_capability=(8, 0),
        pci_device_id=0x20B210DE,
        cores=6_912,
        multiprocessors=108,
        memory_bus_bits=5_120,
        memory_bytes=81_920 * 2**20,
        clock_min_hz=210e6,
        clock_max_hz=1_410e6,
        memory_clocks_hz=(1_593e6, 1_215e6),
        limit_min_w=100.0,
        limit_max_w=400.0,
        limit_default_w=400.0,
        idle_w=50.0,
        sm_w=325.0,
        memory_w=25.0,
        sensor_period_s=0.100,
        sensor_window_s=0.025,
        average_window_s=0.100,
        has_average_field=False,
        has_gpm=False,
    ),
    # Older than the energy counter.
    "p100": GpuProfile(
        name="Tesla P100-PCIE-16GB",
        architecture=4,
        cuda_capability=(6, 0),
        brand=2,
        pci_device_id=0x15F810DE,
        cores=3_584,
        multiprocessors=56,
        memory_bus_bits=4_096,
        memory_bytes=16_280 * 2**20,
        clock_min_hz=540e6,
        clock_max_hz=1_320e6,
        memory_clocks_hz=(715e6,),
        limit_min_w=125.0,
        limit_max_w=250.0,
        limit_default_w=250.0,
        idle_w=30.0,
        sm_w=200.0,
        memory_w=20.0,
        average_window_s=0.020,
        has_counter=False,
        has_average_field=False,
        has_gpm=False,
    ),
}
