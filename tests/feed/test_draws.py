"""Watts for the number of workers: what waiting draws, and what one more worker does."""

from wattsmith.feed.demand import Watts
from wattsmith.feed.draws import Draws
from wattsmith.terms.energy import DomainEnergy, Phase, Source, Window


class Meters:
    """A window whose processors draw BASE_W and WORKER_W for each worker; the GPU draws 80 W while it waits."""

    def __init__(self, base_w=100.0, worker_w=6.0, gpu=True):
        self.base_w, self.worker_w, self.gpu = base_w, worker_w, gpu
        self.duration_s = self.cpu_j = 0.0

    def run(self, seconds, workers):
        self.duration_s += seconds
        self.cpu_j += seconds * (self.base_w + self.worker_w * workers)

    def so_far(self):
        waited_s = self.duration_s / 2
        energies_j = {"cpu-package:0": self.cpu_j} | ({"gpu:0": 200 * self.duration_s} if self.gpu else {})
        domains = tuple(
            DomainEnergy(domain=d, name=d, source=Source.COUNTER, energy_j=j, error_j=0.0, resolution_s=None)
            for d, j in energies_j.items()
        )
        waiting_j = {"gpu:0": 80 * waited_s} if self.gpu else {}
        phases = (Phase(name="data", duration_s=waited_s, energy_j=waiting_j),)
        return Window(name="", began_at="", duration_s=self.duration_s, domains=domains, phases=phases)


def looks(meters, *counts):
    draws = Draws(meters)
    found = [draws.look(counts[0])]
    for count in counts:
        meters.run(5.0, count)
        found.append(draws.look(count))
    return found


def test_one_more_worker_draws_what_the_processors_drew_more():
    assert looks(Meters(), 4, 4, 8, 8)[-1] == Watts(idle_w=80.0, worker_w=6.0)


def test_nothing_is_known_before_the_number_has_changed():
    assert looks(Meters(), 4, 4, 4) == [None] * 4


def test_a_period_in_which_the_number_changed_tells_nothing():
    assert looks(Meters(), 4, 4, 8)[-1] is None


def test_without_a_meter_of_the_accelerator_nothing_is_known():
    assert looks(Meters(gpu=False), 4, 4, 8, 8)[-1] is None


def test_workers_that_seem_to_draw_nothing_are_not_believed():
    assert looks(Meters(worker_w=-1.0), 4, 4, 8, 8)[-1] is None


class NoReadings:
    def so_far(self):
        return None


def test_without_readings_nothing_is_known():
    assert Draws(NoReadings()).look(3) is None
