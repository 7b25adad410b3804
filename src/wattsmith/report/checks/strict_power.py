"""The strict layer, first half: what the samples themselves can prove."""

from dataclasses import replace

from wattsmith.report.checks.evidence import PHASE_OF, RUNS, Evidence
from wattsmith.report.checks.findings import Outcome
from wattsmith.report.checks.official import Found, failed, passed, remark
from wattsmith.report.checks.tallies import SplTally
from wattsmith.report.formats.ptd_log import Averages, watts_reply
from wattsmith.report.window import WindowPower

FEW = 0.01  # share of the samples up to which a flaw is a remark
LEAST_S, LEAST_SAMPLES = 60.0, 60
LARGEST_GAP_S = 2.0
OLD_AVERAGE_LIMIT = 0.005  # real sessions up to v3.0 differ by 0.41 % at most: the daemon ran on a little
NEW_AVERAGE_LIMIT = 1e-5  # from v4.0 on the log is what the daemon gave, to the last digit
PRODUCT_LIMIT = 0.02
MERGED = "the logs of several meters were merged, and their messages do not tell whose they are"


def no_evidence(why: str) -> Found:
    return Outcome.NO_EVIDENCE, why


def window_power(found: Evidence) -> WindowPower | None:
    spl = found.runs["run_1"].spl
    return None if spl is None or spl.window is None else spl.window.result()


def _no_window(found: Evidence) -> Found:
    why = found.problem("run_1/spl.txt", "run_1/mlperf_log_detail.txt") or found.runs["run_1"].why_no_window
    return failed(f"nothing is known of the window: {why}")


def coverage(found: Evidence) -> Found:
    """Whether there is a sample for every second of the window."""
    power = window_power(found)
    if power is None:
        return _no_window(found)
    words = (
        f"{power.samples + power.invalid} samples in {power.duration_s:.1f} s, "
        f"{power.coverage_ratio:.2%} covered, largest gap {power.largest_gap_s:.2f} s"
    )
    many = (power.samples + power.invalid) / power.duration_s > 1 + 2 * FEW
    if power.coverage_ratio < 1 - FEW or many:
        return failed(words + (": more than one a second" if many else ""))
    return remark(words) if power.largest_gap_s > LARGEST_GAP_S else passed(words)


def invalid_samples(found: Evidence) -> Found:
    """Failed and over-range readings in the window, which the official mean leaves out without a word."""
    power, spl = window_power(found), found.runs["run_1"].spl
    if power is None or spl is None:
        return _no_window(found)
    if not power.invalid:
        return passed("none")
    share = power.invalid / max(1, power.samples + power.invalid)
    words = f"{power.invalid} over-range or invalid samples in the window, {share:.1%} of all"
    if spl.rejected and power.mean_w:
        rejected_w = spl.rejected_w / spl.rejected
        bias = share * (rejected_w / power.mean_w - 1)
        words += f"; {spl.rejected} were {rejected_w:.2f} W in the mean, which would change the figure by {bias:+.2%}"
    return failed(words) if share > FEW else remark(words)


def long_enough(found: Evidence) -> Found:
    power = window_power(found)
    if power is None:
        return _no_window(found)
    words = f"{power.duration_s:.1f} s and {power.samples} samples"
    if power.duration_s < LEAST_S or power.samples < LEAST_SAMPLES:
        return failed(f"{words}; at least {LEAST_S:.0f} s and {LEAST_SAMPLES} samples are needed")
    return passed(words)


def order_of_samples(found: Evidence) -> Found:
    """Whether time runs forward in both logs, and each sample has its own moment."""
    words = []
    bad = False
    for run in RUNS:
        spl = found.runs[run].spl
        if spl is None:
            return failed(found.problem(f"{run}/spl.txt") or f"{run}/spl.txt is missing")
        if spl.backwards:
            words.append(f"{run}/spl.txt, line {spl.first_backwards}: the clock goes backwards ({spl.backwards} times)")
            bad = True
        if spl.repeated:
            words.append(f"{run}/spl.txt: {spl.repeated} samples repeat the moment of the one before")
            bad = bad or spl.repeated > FEW * spl.count
        if spl.unread_count:
            first = spl.unread[0]
            words.append(f"{run}/spl.txt, line {first.number}: {first.why} ({spl.unread_count} such lines)")
            bad = True
    if bad:
        return failed("; ".join(words))
    return remark("; ".join(words)) if words else passed("time runs forward, every line is a sample")


def daemon_average(found: Evidence) -> Found:
    """The mean of spl.txt against the average that the daemon wrote to its own log."""
    if found.ptd is None:
        return no_evidence("the daemon's log is missing")
    # Several meters are merged line by line, and what one has more is dropped; so their sum is not exact.
    limit = NEW_AVERAGE_LIMIT if _has_replies(found) and found.meters == 1 else OLD_AVERAGE_LIMIT
    words = []
    for run in RUNS:
        spl, said = found.runs[run].spl, _averages(found, PHASE_OF[run])
        if said is None:
            return no_evidence(f"the daemon's log has no averages of {PHASE_OF[run]}, or not of every meter")
        if spl is None or spl.mean_w is None:
            return failed(found.problem(f"{run}/spl.txt") or f"{run}/spl.txt has no valid sample")
        apart = abs(spl.mean_w / said.mean_w - 1) if said.mean_w > 0 else float("inf")
        words.append(f"{run}: {spl.mean_w:.4f} W of {spl.valid}, the daemon {said.mean_w:.4f} W of {said.valid}")
        if apart > limit or abs(spl.count - said.samples) > max(3.0, FEW * said.samples):
            return failed(f"{words[-1]} samples: {apart:.3%} apart, {limit:.3%} allowed")
    return passed("; ".join(words))


def _averages(found: Evidence, phase: str) -> Averages | None:
    """What the daemons counted themselves, added up over the meters; None: one of them is missing."""
    said = [] if found.ptd is None else found.ptd.averages[phase]
    if len(said) < found.meters:
        return None
    mine = said[: found.meters]
    return replace(mine[0], mean_w=sum(one.mean_w for one in mine), valid=min(one.valid for one in mine))


def _has_replies(found: Evidence) -> bool:
    return found.server is not None and any(one.command == "Watts" for one in found.server.ptd_messages)


def watts_replies(found: Evidence) -> Found:
    """The answers to Watts, recorded in server.json since v4.0, against the daemon's log and the samples."""
    if found.server is None or not _has_replies(found):
        return no_evidence("the daemon was not asked; the workflow does so since v4.0")
    if found.ptd is None:
        return no_evidence("the daemon's log is missing")
    if found.meters > 1:
        return no_evidence(MERGED)
    phase = None
    compared = 0
    for one in found.server.ptd_messages:
        if one.command.startswith("Go,"):
            phase = "testing" if one.command.endswith("_testing") else "ranging"
        if one.command != "Watts" or phase is None:
            continue
        reply, said = watts_reply(one.reply), _averages(found, phase)
        if reply is None:
            return failed(f"an answer to Watts cannot be read: {one.reply!r}")
        if said is not None and _differ(reply, said):
            return failed(f"the answer to Watts is {one.reply}; the log has {said.mean_w} W of {said.samples} samples")
        compared += said is not None
    return passed(f"{compared} answers agree with the daemon's log") if compared else no_evidence("nothing to compare")


def _differ(reply: Averages, said: Averages) -> bool:
    # The first answer comes before Stop, when a sample may still follow.
    far = max(NEW_AVERAGE_LIMIT, 3 / max(1, said.samples)) if reply.samples != said.samples else NEW_AVERAGE_LIMIT
    return (
        abs(reply.samples - said.samples) > 3
        or abs(reply.mean_w - said.mean_w) > far * abs(said.mean_w)
        or (reply.samples == said.samples and reply.max_w != said.max_w)
    )


def echoed_samples(found: Evidence) -> Found:
    """The samples that the daemon's log repeats since v4.0, one by one, against spl.txt."""
    ptd = found.ptd
    if found.meters > 1:
        return no_evidence(MERGED)
    echoes = [] if ptd is None else [one for one in ptd.echoes if one.count]
    if len(echoes) < 2:
        return no_evidence("the daemon's log does not repeat the samples; it does so since v4.0")
    words = []
    for run, echo in zip(RUNS, (echoes[0], echoes[-1]), strict=True):
        spl = found.runs[run].spl
        if spl is None:
            return failed(found.problem(f"{run}/spl.txt") or f"{run}/spl.txt is missing")
        if spl.count < echo.count:
            return failed(f"{run}/spl.txt has {spl.count} samples, the daemon gave {echo.count}")
        if spl.crc(echo.count) != echo.crc:
            return failed(f"{run}/spl.txt differs from the {echo.count} samples that the daemon gave")
        words.append(f"{run}: {echo.count} of {spl.count}")
    return passed(f"time and watts agree, as far as the log goes: {', '.join(words)} samples")


def electric(found: Evidence) -> Found:
    """Watts against volts × amps × power factor, and a sum against its channels."""
    words = []
    for run in RUNS:
        spl = found.runs[run].spl
        if spl is None:
            return failed(found.problem(f"{run}/spl.txt") or f"{run}/spl.txt is missing")
        if spl.sum_wrong > FEW * spl.count:
            return failed(f"{run}/spl.txt: in {spl.sum_wrong} of {spl.count} samples the channels do not make the sum")
        if spl.compared:
            ratio = spl.product_ratio / spl.compared
            words.append(f"{run}: watts are {ratio:.4f} of volts × amps × PF")
            if abs(ratio - 1) > PRODUCT_LIMIT or spl.product_wrong > 5 * FEW * spl.compared:
                return failed(f"{words[-1]}; {spl.product_wrong} of {spl.compared} samples are off by more than 5 %")
    return passed("; ".join(words)) if words else no_evidence("the samples have no volts, amps and PF to compare")


def meter_ranges(found: Evidence) -> Found:
    """The ranges that were set for the test against the largest readings of the ranging."""
    spl = found.runs["ranging"].spl
    if found.server is None or spl is None:
        return failed(found.problem("power/server.json", "ranging/spl.txt") or "there is no ranging run")
    given = _ranges_of_test(found)
    if given is None:
        return failed("the daemon was not asked to start twice, once for ranging and once for testing")
    logged = found.ptd.ranges["testing"] if found.ptd is not None and found.meters == 1 else {}
    auto = [name for name, value in logged.items() if value == "Auto"]
    if auto:
        return failed(f"the daemon's log shows that the test ran with automatic ranges ({', '.join(auto)})")
    words = []
    above = False
    for letter, name, ratio in (("V", "voltage", 1.0), ("A", "current", found.rules.amps_ratio)):
        text = given.get(letter)
        if text is None:
            return failed(f"no {name} range was set between ranging and testing")
        try:
            value = float(text)
        except ValueError:
            return failed(f"the test ran with the {name} range {text!r}; it must be fixed to what ranging found")
        if found.meters > 1:
            words.append(f"{name} {value:.4g}")
            continue  # each meter has a range of its own, and the messages do not tell whose this is
        least, most = _allowed(spl, letter, ratio)
        words.append(f"{name} {value:.4g}, ranging found {most / ratio:.4g}")
        if not value >= least * 0.995:
            return failed(f"{words[-1]}: the range of the test is below")
        above = above or value > most * 1.005
    if above:
        return remark("; ".join(words) + f": above what the round sets (× {found.rules.amps_ratio:g})")
    return passed("; ".join(words))


def _ranges_of_test(found: Evidence) -> dict[str, str] | None:
    messages = found.server.ptd_messages if found.server is not None else ()
    starts = [place for place, one in enumerate(messages) if one.command.startswith("Go,")]
    if len(starts) < 2:
        return None
    between = [one.command.split(",") for one in messages[starts[0] : starts[1]] if one.command.startswith("SR,")]
    return {parts[1]: parts[2] for parts in between if len(parts) == 3}


def _allowed(spl: SplTally, letter: str, ratio: float) -> tuple[float, float]:
    """The lowest and highest range that the ranging stands for: workflows took the sum's reading, or a channel's."""
    largest = [one for one in (spl.max_volts if letter == "V" else spl.max_amps) if one > 0]
    return (ratio * min(largest), ratio * max(largest)) if largest else (0.0, float("inf"))
