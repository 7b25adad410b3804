"""The energy of one domain as one curve.

The curve only ever grows at its end: what was once read off it never changes. A window's energy is the
difference of the curve at its two edges, so adjacent windows add up and a nested one never exceeds its parent.

Between counter readings the curve follows the power samples, which are finer. A counter, where there is one,
holds it: as soon as the curve leaves the band that the counter's own grain explains, the part outside is made
up for in the samples that follow, and a lasting disagreement becomes a gain. So a short window has the
resolution of the samples and a long one the truth of the counter.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from wattsmith.terms.energy import CounterReading, CrossCheck, DomainEnergy, MeterCard, PowerSample, Readings

LATE = 2.5  # two samples further apart than so many sample periods have lost some between them
KEPT_S = 120.0  # how much of the curve stays in memory behind the oldest edge that is still wanted
FINE_PEAK_S = 60.0  # the peak of a longer window is taken from whole seconds
GAIN_BASELINE = 64  # how many counter readings back the gain looks
CROSS_CHECK_FROM_S = 3.0  # shorter stretches hold too few counter steps to compare
CONFIDENCE = 1.96  # random doubts are stated so that 95 of 100 figures lie within them
ROUGHNESS_RATIO = 0.001  # samples come at odd moments and are rounded: on an H200 they add up to this of the counter
IN_STEP_RATIO = 0.1  # a sensor that weighs moments unevenly may be in step with the load: this share of its unevenness
IN_STEP_S = 2.0  # but not for longer than this, since loads do not keep the sensor's time


@dataclass(frozen=True, slots=True)
class Anchor:
    """The curve at one counter reading."""

    time_s: float
    counter_j: float
    integral_j: float
    peak_w: float  # largest power since the anchor before


@dataclass(frozen=True, slots=True)
class Mark:
    """The curve at one moment."""

    time_s: float
    energy_j: float
    integral_j: float
    variance_j2: float  # of what happened between samples, cumulative
    slack_j: float  # bound on what went by unseen in gaps, cumulative
    edge_j: float  # doubt about where inside one sample interval this moment lies
    readings: int
    missed: int
    anchor: Anchor | None  # last counter reading before it
    peak_w: float | None  # since the moment that the mark was asked to look back to
    lost: str | None  # why the meter had ended before this moment


class Tape:
    """One domain's curve. Feed it in order of time; ask it for marks at or before `end_s`."""

    def __init__(self, card: MeterCard) -> None:
        self.card = card
        self.lost: str | None = None
        self._time_s = array("d")
        self._power_w = array("d")
        self._energy_j = array("d")
        self._integral_j = array("d")
        self._variance_j2 = array("d")
        self._slack_j = array("d")
        self._missed = array("L")
        self._forgotten = 0  # knots dropped from the front
        self._anchors: list[Anchor] = []
        self._anchor_times = array("d")
        self._offset_j = 0.0  # counter + offset lies on the curve
        self._first_grain_j = 0.0
        self._gain = 1.0
        self._owed_j = 0.0  # what the counter saw and the curve has not yet made up for
        self._waiting: CounterReading | None = None
        self._failed = 0  # readings that failed since the last one that came
        self._peak_since_anchor_w = 0.0
        self._second_peaks_w: dict[int, float] = {}

    @property
    def end_s(self) -> float:
        """The last moment up to which the curve is known; -inf before the first reading."""
        return self._time_s[-1] if self._time_s else -math.inf

    @property
    def latest_power_w(self) -> float | None:
        return self._power_w[-1] if self._power_w else None

    # ---- feeding

    def feed(self, readings: Readings) -> None:
        """Append what a meter gave."""
        self._failed += readings.missed
        fresh = [s for s in readings.power if s.time_s > self.end_s]
        self._failed += len(readings.power) - len(fresh)
        gap_j = self._gap_energy_j(fresh, readings.counter)
        for sample in fresh:
            gap_j = self._append_sample(sample, gap_j)
            self._anchor_if_reached()
        if readings.counter is not None and self.card.power_period_s is None:
            self._append_counter(readings.counter)
        elif readings.counter is not None:
            self._waiting = readings.counter  # until samples have come from both sides of it
            self._anchor_if_reached()

    def hold_until(self, time_s: float) -> None:
        """Carry the last power on to TIME_S, in full doubt: for a meter that gives nothing more in time."""
        if self._time_s and time_s > self.end_s and self.lost is None:
            self._append(time_s, self._power_w[-1], slack_j=self._power_w[-1] * (time_s - self.end_s))

    def lose(self, why: str) -> None:
        """The meter is gone; the curve ends here."""
        self.lost = self.lost or why

    def forget_before(self, time_s: float, oldest_window_s: float) -> None:
        """Drop what no edge at or after TIME_S, and no window begun at or after OLDEST_WINDOW_S, will need."""
        spare = bisect_left(self._time_s, time_s - KEPT_S) - 1
        if spare < 1000:  # dropping from the front moves the rest, so it is done in large pieces
            return
        for column in (
            self._time_s,
            self._power_w,
            self._energy_j,
            self._integral_j,
            self._variance_j2,
            self._slack_j,
        ):
            del column[:spare]
        del self._missed[:spare]
        self._forgotten += spare
        del self._anchors[: -2 * GAIN_BASELINE]
        del self._anchor_times[: -2 * GAIN_BASELINE]
        self._second_peaks_w = {s: w for s, w in self._second_peaks_w.items() if s >= oldest_window_s - KEPT_S}

    def _append_sample(self, sample: PowerSample, gap_j: float | None) -> float | None:
        """Append one sample; GAP_J is the energy of the coming gap if the counter knows it. Returns it if unused."""
        if not self._time_s:
            self._append(sample.time_s, sample.power_w)
            return gap_j
        if not self._is_gap(self.end_s, sample.time_s):
            if self.card.history_s is not None:
                self._failed = 0  # the driver had kept what the failed reads did not fetch
            self._append(sample.time_s, sample.power_w)
            return gap_j
        span_s = sample.time_s - self.end_s
        self._failed = max(self._failed, round(span_s / self.card.sample_period_s) - 1)
        highest_w = max(self._power_w[-1], sample.power_w)
        if gap_j is None:
            self._append(sample.time_s, sample.power_w, slack_j=highest_w * span_s)
        else:
            grain_j = 2 * (self.card.counter_period_s or 0.0) * highest_w
            self._append(sample.time_s, sample.power_w, energy_j=gap_j, slack_j=grain_j)
        return None

    def _is_gap(self, before_s: float, after_s: float) -> bool:
        return after_s - before_s > LATE * self.card.sample_period_s

    def _gap_energy_j(self, fresh: list[PowerSample], counter: CounterReading | None) -> float | None:
        """What the counter says passed in the one gap before or among FRESH samples; None: no gap, or it cannot say."""
        if counter is None or not self._anchors or not fresh:
            return None
        times_s = [self.end_s, *(s.time_s for s in fresh)]
        powers_w = [self._power_w[-1], *(s.power_w for s in fresh)]
        seen_j, gaps = 0.0, 0
        for i in range(len(fresh)):
            if self._is_gap(times_s[i], times_s[i + 1]):
                gaps += 1
            else:
                seen_j += (times_s[i + 1] - times_s[i]) * (powers_w[i] + powers_w[i + 1]) / 2
        if gaps != 1:
            return None
        tail_j = max(0.0, counter.time_s - times_s[-1]) * powers_w[-1]
        passed_j = counter.energy_j + self._offset_j - self._energy_j[-1]
        return max(0.0, passed_j - self._gain * (seen_j + tail_j))

    def _append(self, time_s: float, power_w: float, *, energy_j: float | None = None, slack_j: float = 0.0) -> None:
        """One more knot. Without ENERGY_J the stretch up to it is the trapezoid under the two powers."""
        missed, self._failed = self._failed, 0
        if not self._time_s:
            self._push(time_s, power_w, 0.0, 0.0, 0.0, slack_j, missed)
            return
        span_s = time_s - self._time_s[-1]
        change_w = power_w - self._power_w[-1]
        integral_j = span_s * (power_w + self._power_w[-1]) / 2
        if energy_j is None:
            energy_j = self._gain * integral_j
            paid_j = min(max(self._owed_j, -energy_j / 2), energy_j / 2)
            self._owed_j -= paid_j
            energy_j += paid_j
        variance_j2 = 0.0 if slack_j else (change_w * span_s) ** 2 * (1 / 12 + self.card.unseen_ratio / 2)
        self._push(
            time_s,
            power_w,
            self._energy_j[-1] + energy_j,
            self._integral_j[-1] + integral_j,
            self._variance_j2[-1] + variance_j2,
            self._slack_j[-1] + slack_j,
            self._missed[-1] + missed,
        )

    def _push(
        self,
        time_s: float,
        power_w: float,
        energy_j: float,
        integral_j: float,
        variance_j2: float,
        slack_j: float,
        missed: int,
    ) -> None:
        self._time_s.append(time_s)
        self._power_w.append(power_w)
        self._energy_j.append(energy_j)
        self._integral_j.append(integral_j)
        self._variance_j2.append(variance_j2)
        self._slack_j.append(slack_j)
        self._missed.append(missed)
        self._peak_since_anchor_w = max(self._peak_since_anchor_w, power_w)
        second = int(time_s)
        self._second_peaks_w[second] = max(self._second_peaks_w.get(second, 0.0), power_w)

    def _append_counter(self, counter: CounterReading) -> None:
        """A knot of a domain that has a counter and no power: the mean power since the last knot."""
        if not self._time_s:
            self._offset_j = -counter.energy_j
            self._push(counter.time_s, 0.0, 0.0, 0.0, 0.0, 0.0, self._failed)
            self._failed = 0
            return
        span_s = counter.time_s - self.end_s
        if span_s <= 0:
            self._failed += 1
            return
        energy_j = max(0.0, counter.energy_j + self._offset_j - self._energy_j[-1])
        if len(self._power_w) == 1:
            self._power_w[0] = energy_j / span_s  # the first knot had no power of its own
        self._append(counter.time_s, energy_j / span_s, energy_j=energy_j)
        self._variance_j2[-1] = self._variance_j2[-2]  # the counter saw all that passed between the knots

    def _anchor_if_reached(self) -> None:
        if self._waiting is not None and self._waiting.time_s <= self.end_s:
            self._anchor(self._waiting)
            self._waiting = None

    def _anchor(self, counter: CounterReading) -> None:
        """Hold the curve to the counter: see the head of this file."""
        curve = self.mark(counter.time_s)
        anchor = Anchor(counter.time_s, counter.energy_j, curve.integral_j, self._peak_since_anchor_w)
        self._peak_since_anchor_w = self._power_w[-1]
        if not self._anchors:
            self._offset_j = curve.energy_j - counter.energy_j
            self._first_grain_j = (self.card.counter_period_s or 0.0) * anchor.peak_w
        else:
            # This reading may be one period old, and so may the first one have been.
            grain_j = max(self._first_grain_j, (self.card.counter_period_s or 0.0) * anchor.peak_w)
            self._owed_j = _beyond(counter.energy_j + self._offset_j - curve.energy_j, grain_j)
            self._gain = self._learnt_gain(anchor, grain_j)
        self._anchors.append(anchor)
        self._anchor_times.append(anchor.time_s)

    def _learnt_gain(self, now: Anchor, grain_j: float) -> float:
        """Counter over integrated power on a long baseline, as far as the counter's grain cannot explain it."""
        then = self._anchors[-GAIN_BASELINE] if len(self._anchors) >= GAIN_BASELINE else self._anchors[0]
        integrated_j = now.integral_j - then.integral_j
        if integrated_j <= 0:
            return self._gain
        gain = 1.0 + _beyond(now.counter_j - then.counter_j - integrated_j, 2 * grain_j) / integrated_j
        return min(max(gain, 0.1), 10.0)

    # ---- reading off

    def mark(self, time_s: float, since_s: float | None = None) -> Mark:
        """The curve at TIME_S; the peak power is that since SINCE_S."""
        peak_w = None if since_s is None else self._peak_w(since_s, time_s)
        anchor = self._anchor_before(time_s)
        after = bisect_left(self._time_s, time_s)
        if after == len(self._time_s):  # behind the end: the meter was lost, or never gave anything
            return self._mark_at_knot(after - 1, time_s, anchor, peak_w)
        if self._time_s[after] == time_s:
            return self._mark_at_knot(after, time_s, anchor, peak_w)
        if after == 0:
            return self._mark_before_start(time_s, peak_w)
        return self._mark_between(after - 1, time_s, anchor, peak_w)

    def _mark_at_knot(self, knot: int, time_s: float, anchor: Anchor | None, peak_w: float | None) -> Mark:
        if knot < 0:
            return Mark(time_s, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, None, None, self.lost or "it has given no reading yet")
        return Mark(
            time_s,
            self._energy_j[knot],
            self._integral_j[knot],
            self._variance_j2[knot],
            self._slack_j[knot],
            0.0,
            self._forgotten + knot + 1,
            self._missed[knot],
            anchor,
            peak_w,
            self.lost if time_s > self._time_s[knot] else None,
        )

    def _mark_before_start(self, time_s: float, peak_w: float | None) -> Mark:
        """Carry the first power back, in full doubt: the window began before the meter gave anything."""
        missing_j = self._power_w[0] * (self._time_s[0] - time_s)
        return Mark(time_s, -missing_j, -missing_j, 0.0, -missing_j, 0.0, 0, 0, None, peak_w, None)

    def _mark_between(self, before: int, time_s: float, anchor: Anchor | None, peak_w: float | None) -> Mark:
        after = before + 1
        span_s = self._time_s[after] - self._time_s[before]
        part_s = time_s - self._time_s[before]
        first_w, second_w = self._power_w[before], self._power_w[after]
        passed_j = self._energy_j[after] - self._energy_j[before]
        if self.card.power_period_s is None:
            share = part_s / span_s
            edge_j = passed_j * max(share, 1 - share)  # the counter may have moved all at once
        else:
            whole_j = span_s * (first_w + second_w) / 2
            part_j = part_s * first_w + (second_w - first_w) * part_s**2 / (2 * span_s)
            share = part_j / whole_j if whole_j > 0 else part_s / span_s
            # If the power jumped between the samples, it may have done so at either of them.
            edge_j = abs(second_w - first_w) * min(part_s, span_s - part_s)
        return Mark(
            time_s,
            self._energy_j[before] + share * passed_j,
            self._integral_j[before] + share * (self._integral_j[after] - self._integral_j[before]),
            self._variance_j2[before] + share * (self._variance_j2[after] - self._variance_j2[before]),
            self._slack_j[before] + share * (self._slack_j[after] - self._slack_j[before]),
            edge_j,
            self._forgotten + before + 1,
            self._missed[before],
            anchor,
            peak_w,
            None,
        )

    def _anchor_before(self, time_s: float) -> Anchor | None:
        index = bisect_right(self._anchor_times, time_s)
        return self._anchors[index - 1] if index else None

    def _peak_w(self, begin_s: float, end_s: float) -> float | None:
        if end_s - begin_s > FINE_PEAK_S:
            peaks_w, seconds = self._second_peaks_w, range(int(begin_s) + 1, int(end_s))
            fewer = seconds if len(seconds) < len(peaks_w) else peaks_w
            return max((peaks_w[s] for s in fewer if s in seconds and s in peaks_w), default=None)
        inside = self._power_w[bisect_left(self._time_s, begin_s) : bisect_right(self._time_s, end_s)]
        return max(inside, default=None)


def _beyond(value: float, band: float) -> float:
    """How far VALUE lies outside ±BAND; 0 inside."""
    return math.copysign(max(0.0, abs(value) - band), value)


def energy_between(card: MeterCard, begin: Mark, end: Mark) -> DomainEnergy:
    """The energy that passed from BEGIN to END on one tape."""
    if end.readings == 0 and end.lost is not None:
        return unknown(card, f"the meter of {card.domain} gave no reading: {end.lost}")
    if begin.lost is not None:
        return unknown(card, f"the meter of {card.domain} was lost before this window began: {begin.lost}")
    energy_j = max(0.0, end.energy_j - begin.energy_j)
    why = None
    if end.lost is not None:
        why = f"the meter of {card.domain} was lost inside the window ({end.lost}); the figure holds what came before"
    elif end.missed > begin.missed:
        why = f"{end.missed - begin.missed} readings are missing"
    return DomainEnergy(
        domain=card.domain,
        name=card.name,
        source=card.source,
        energy_j=energy_j,
        error_j=error_between_j(card, begin, end),
        resolution_s=card.resolution_s,
        accuracy_ratio=card.accuracy_ratio,
        simulated=card.simulated,
        complete=end.lost is None,
        why=why or card.note,
        readings=end.readings - begin.readings,
        missed=end.missed - begin.missed,
        peak_w=end.peak_w,
        cross_check=cross_check(card, begin, end),
        encloses=card.encloses,
    )


def unknown(card: MeterCard, why: str) -> DomainEnergy:
    """No figure, and why."""
    return DomainEnergy(
        domain=card.domain,
        name=card.name,
        source=card.source,
        energy_j=None,
        error_j=None,
        resolution_s=card.resolution_s,
        simulated=card.simulated,
        complete=False,
        why=why,
        encloses=card.encloses,
    )


def error_between_j(card: MeterCard, begin: Mark, end: Mark) -> float:
    """How far the energy from BEGIN to END may be from what the meter would have said with endless resolution."""
    edges_j = begin.edge_j + end.edge_j
    if card.power_period_s is None:
        return edges_j + (card.counter_period_s or 0.0) * _mean_w(begin, end)
    random_j = CONFIDENCE * math.sqrt(max(0.0, end.variance_j2 - begin.variance_j2))
    rough_j = ROUGHNESS_RATIO * (end.integral_j - begin.integral_j)
    inside_j = random_j + rough_j + (end.slack_j - begin.slack_j)
    if begin.anchor is not None and end.anchor is not None and card.counter_period_s is not None:
        inside_j = min(inside_j, card.counter_period_s * (begin.anchor.peak_w + end.anchor.peak_w))
    # The counter adds up what the same sensor saw, so it is in step with the load when the samples are.
    in_step_s = min(end.time_s - begin.time_s, IN_STEP_S)
    return edges_j + inside_j + IN_STEP_RATIO * card.uneven_ratio * _mean_w(begin, end) * in_step_s


def _mean_w(begin: Mark, end: Mark) -> float:
    span_s = end.time_s - begin.time_s
    return 0.0 if span_s <= 0 else (end.energy_j - begin.energy_j) / span_s


def cross_check(card: MeterCard, begin: Mark, end: Mark) -> CrossCheck | None:
    """Counter against integrated power, between the last counter readings before each edge."""
    if begin.anchor is None or end.anchor is None or card.counter_period_s is None:
        return None
    duration_s = end.anchor.time_s - begin.anchor.time_s
    if duration_s < CROSS_CHECK_FROM_S:
        return None
    grain_j = card.counter_period_s * (begin.anchor.peak_w + end.anchor.peak_w)
    random_j = CONFIDENCE * math.sqrt(max(0.0, end.variance_j2 - begin.variance_j2))
    return CrossCheck(
        duration_s=duration_s,
        counter_j=end.anchor.counter_j - begin.anchor.counter_j,
        integrated_j=end.anchor.integral_j - begin.anchor.integral_j,
        joint_error_j=grain_j + random_j + (end.slack_j - begin.slack_j),
    )
