"""Activity counters of NVIDIA GPUs from Hopper on, through NVML's GPM: how busy which part of the chip is.

GPM compares two samples. A reader keeps the last one and tells what happened since.
"""

from contextlib import suppress
from typing import Any

from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable

METRICS = {
    "engine_ratio": "GRAPHICS_UTIL",
    "sm_ratio": "SM_UTIL",
    "occupancy_ratio": "SM_OCCUPANCY",
    "tensor_ratio": "ANY_TENSOR_UTIL",
    "dram_ratio": "DRAM_BW_UTIL",
    "fp64_ratio": "FP64_UTIL",
    "fp32_ratio": "FP32_UTIL",
    "fp16_ratio": "FP16_UTIL",
    "integer_ratio": "INTEGER_UTIL",
}


def gpu_count() -> int:
    """How many GPUs NVIDIA's driver shows; 0: no driver answers."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


class GpmReader:
    """Reads the activity of one GPU since it was last read."""

    def __init__(self, index: int = 0) -> None:
        """GPU INDEX of the driver. Raises MeterUnavailable where it has no GPM."""
        import pynvml

        self._nvml: Any = pynvml
        self.domain = f"gpu:{index}"
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as absent:
            raise MeterUnavailable(f"no NVIDIA driver answers here: {absent}. See what `nvidia-smi` says.") from absent
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            if not pynvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                raise MeterUnavailable(f"{self.domain} has no activity counters through GPM; it is older than Hopper")
            self._before = self._sample()
        except pynvml.NVMLError as refused:
            pynvml.nvmlShutdown()
            raise MeterUnavailable(f"{self.domain} gives no activity counters: {refused}") from refused
        except MeterUnavailable:
            pynvml.nvmlShutdown()
            raise
        self._open = True

    def read(self) -> dict[str, float]:
        """Activity since the last read, each 0 … 1, by channel; what the driver does not tell is left out."""
        if not self._open:
            raise MeterLost(f"{self.domain}: this reader was closed")
        nvml = self._nvml
        try:
            now = self._sample()
            get = nvml.c_nvmlGpmMetricsGet_t()
            get.version = nvml.NVML_GPM_METRICS_GET_VERSION
            get.numMetrics = len(METRICS)
            get.sample1, get.sample2 = self._before, now
            for place, name in enumerate(METRICS.values()):
                get.metrics[place].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")
            nvml.nvmlGpmMetricsGet(get)
        except nvml.NVMLError_GpuIsLost as lost:
            raise MeterLost(f"{self.domain}: {lost}") from lost
        except nvml.NVMLError as failed:
            raise MeterMissed(f"{self.domain}: activity could not be read: {failed}") from failed
        nvml.nvmlGpmSampleFree(self._before)
        self._before = now
        return {
            channel: get.metrics[place].value / 100  # GPM counts in per cent
            for place, channel in enumerate(METRICS)
            if get.metrics[place].nvmlReturn == nvml.NVML_SUCCESS
        }

    def _sample(self) -> Any:
        return self._nvml.nvmlGpmSampleGet(self._handle, self._nvml.nvmlGpmSampleAlloc())

    def close(self) -> None:
        if self._open:
            self._open = False
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(self._before)
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
