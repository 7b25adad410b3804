"""A machine says whether any part of it is simulated."""

from wattsmith.terms.energy import MeterCard, Source
from wattsmith.terms.machine import Gpu, Machine


def machine(**parts):
    return Machine(hostname="h", system="Linux", cpu="a CPU", cpu_count=2, memory_bytes=2**30, **parts)


def test_a_machine_of_real_parts_is_real():
    assert not machine(gpus=(Gpu(domain="gpu:0", name="a card", uuid="GPU-1"),)).simulated


def test_one_simulated_gpu_makes_the_machine_simulated():
    assert machine(gpus=(Gpu(domain="gpu:0", name="a card", uuid="GPU-1", simulated=True),)).simulated


def test_one_simulated_meter_makes_the_machine_simulated():
    card = MeterCard(
        domain="cpu-package:0",
        name="package-0",
        source=Source.COUNTER,
        counter_period_s=0.001,
        simulated=True,
    )
    assert machine(meters=(card,)).simulated
