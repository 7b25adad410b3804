"""Made-up work: how long it takes and what it needs follows from two lines of arithmetic."""

from wattsmith.terms.tuning import Curve, Knob, Space, Trial


def space(batches=(8, 16, 32, 64), limits=(100, 150, 200, 250), batch=32, limit=250):
    return Space(
        knobs=(
            Knob(name="batch", levels=batches, present=batch, saves="up"),
            Knob(name="power_limit_w", levels=limits, present=limit, saves="down", caps="power"),
        )
    )


def work(draw_w=220.0, overhead=8.0):
    """A workload: each step has an overhead that batches share; a limit below its draw slows it down."""

    def measure(setting):
        held_back = max(1.0, draw_w / setting["power_limit_w"])
        time_s = (1 + overhead / setting["batch"]) * held_back**0.5
        return {"energy_j": time_s * (draw_w / held_back + 20), "time_s": time_s}

    return measure


def curve(measure, of, workload="other", same_device=False):
    """All that there is to know of a workload."""
    trials = [Trial(setting=of.setting(cell), metrics=measure(of.setting(cell))) for cell in of.cells()]
    return Curve(workload=workload, space=of, trials=trials, same_device=same_device)


EXACT = {"energy": 0.001, "time": 0.001}


def search(tuner, measure, noise=EXACT):
    """Run TUNER to its end; its settings in order."""
    asked = []
    while (setting := tuner.ask()) is not None:
        asked.append(setting)
        tuner.tell(setting, measure(setting), noise)
    return asked


def optimum(of, measure, limit_s):
    """The true best."""
    settings = [of.setting(cell) for cell in of.cells()]
    return min((one for one in settings if measure(one)["time_s"] <= limit_s), key=lambda one: measure(one)["energy_j"])
