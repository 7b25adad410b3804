import contextlib
import socket
import threading
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contracts.meter import MeterContract

from wattsmith.measure.ptd import PtdClient, PtdRanges, find_ptd, parse_address, parse_identity, parse_sample
from wattsmith.sim.clock import SimulatedClock
from wattsmith.sim.ptd import SimulatedPtd
from wattsmith.terms.energy import Source
from wattsmith.terms.errors import BadInput, MeterLost, MeterMissed, MeterUnavailable, WattsmithError


@pytest.fixture
def clock():
    return SimulatedClock(1_000.0)


@pytest.fixture
def daemon(clock):
    with SimulatedPtd(power_w=200.0, wall_s=clock.now_s) as daemon:
        yield daemon


@pytest.fixture
def client(daemon):
    client = PtdClient("127.0.0.1", daemon.port, timeout_s=1.0)
    yield client
    client.close()


class TestPtdMeter(MeterContract):
    @pytest.fixture
    def meter(self, daemon, clock):
        meter = find_ptd(clock, f"127.0.0.1:{daemon.port}")[0]
        yield meter
        meter.close()

    @pytest.fixture
    def advance(self, clock):
        return clock.sleep_s


def test_it_knows_who_answers(client):
    who = client.identify()
    assert (who.model, who.version, who.channels) == ("WattsmithSimulatedAnalyzer", "1.11.1", 1)
    assert who.instrument == "WATTSMITH;simulated;0;F0"
    assert who.simulated
    assert who.known_version


def test_a_real_analyzers_answer_is_not_simulated():
    who = parse_identity(
        "YokogawaWT210,1000,1,1,1,1,0,0,1,version=1.10.0-ed9a21d2-20220817,OS=Linux,mode=power,1,1,1,0,0,no_cal_date,"
        "YOKOGAWA;760401;0;F1.12"
    )
    assert (who.model, who.version, who.simulated) == ("YokogawaWT210", "1.10.0", False)


def test_a_whole_measurement(client, clock):
    client.set_ranges(PtdRanges(volts=None, amps=None))
    assert client.ranges() == PtdRanges(volts=None, amps=None)
    client.set_ranges(PtdRanges(volts=230.0, amps=0.9))
    assert client.ranges() == PtdRanges(volts=300.0, amps=1.0)
    client.go("2026-01-01_00-00-00_testing")
    clock.sleep_s(3.0)
    client.stop()
    samples = client.samples()
    assert [sample.power_w for sample in samples] == [200.0] * 4
    assert [b.wall_s - a.wall_s for a, b in pairwise(samples)] == [1.0] * 3
    assert client.average().mean_w == 200.0
    assert client.uncertainty_ratio() == pytest.approx(0.001 + 0.001 * 300 / 200)
    assert [message.command for message in client.messages][:3] == ["Hello", "SR,V,Auto", "SR,A,Auto"]


def test_every_channel_is_read(clock):
    with SimulatedPtd(power_w=300.0, channels=2, wall_s=clock.now_s) as daemon:
        client = PtdClient("127.0.0.1", daemon.port)
        client.go("m")
        client.stop()
        assert client.samples()[0].channels_w == (150.0, 150.0)
        assert client.identify().channels == 2
        client.close()


def test_a_meter_for_direct_current_has_its_own_question(clock):
    with SimulatedPtd(power_w=12.0, direct_current=True, wall_s=clock.now_s) as daemon:
        client = PtdClient("127.0.0.1", daemon.port)
        client.go("m")
        client.stop()
        assert client.samples()[0].power_w == 12.0
        client.close()


def test_the_meter_gives_the_mean_of_what_is_new(daemon, clock):
    meter = find_ptd(clock, f"127.0.0.1:{daemon.port}")[0]
    assert meter.card.domain == "wall:0"
    assert meter.card.source is Source.EXTERNAL
    assert meter.card.simulated
    meter.read(counter=False)
    daemon.power_w = 500.0
    clock.sleep_s(2.0)
    assert meter.read(counter=False).power[0].power_w == pytest.approx(500.0)
    meter.close()


def test_readings_beyond_the_range_are_counted_as_missed(daemon, clock):
    meter = find_ptd(clock, f"127.0.0.1:{daemon.port}")[0]
    meter.read(counter=False)
    daemon.power_w = 5_000.0  # 22 A in a range of 5 A
    clock.sleep_s(3.0)
    readings = meter.read(counter=False)
    assert readings.missed == 3
    assert "beyond its range" in readings.why_missed
    meter.close()


# ---- what goes wrong


@pytest.mark.parametrize(
    ("failure", "error", "said"),
    [
        ("dies", MeterLost, "closed the connection"),
        ("cut", MeterLost, "closed the connection"),
        ("garbage", MeterLost, "no text"),
        ("silent", MeterLost, "not answered within 0.2 s"),
        ("slow", MeterLost, "not answered within 0.2 s"),
        ("endless", MeterLost, "no end of line"),
        ("error", MeterMissed, "refused `Watts`"),
    ],
)
def test_a_daemon_that_fails_is_named(daemon, failure, error, said):
    client = PtdClient("127.0.0.1", daemon.port, timeout_s=0.2)
    daemon.failure = failure
    with pytest.raises(error, match=said):
        client.average()
    client.close()


def test_after_a_late_reply_the_connection_is_not_used_again(daemon):
    client = PtdClient("127.0.0.1", daemon.port, timeout_s=0.2)
    daemon.failure, daemon.fails_at = "slow", "Watts"
    with pytest.raises(MeterLost):
        client.average()
    with pytest.raises(MeterLost, match="is lost"):
        client.identify()


@pytest.mark.parametrize("failure", ["dies", "garbage", "silent", "error"])
def test_a_daemon_that_does_not_greet_is_not_there(daemon, failure):
    daemon.failure = failure
    with pytest.raises(MeterUnavailable, match="no power daemon"):
        PtdClient("127.0.0.1", daemon.port, timeout_s=0.2)


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(MeterUnavailable, match="no power daemon answers"):
        PtdClient("127.0.0.1", port)


def test_an_unknown_version_is_named_with_the_known_ones(clock):
    with (
        SimulatedPtd(version="2.0.0", wall_s=clock.now_s) as daemon,
        pytest.raises(MeterUnavailable, match=r"version 2\.0\.0; this program knows 1\.9\.1"),
    ):
        find_ptd(clock, f"127.0.0.1:{daemon.port}")


@pytest.mark.parametrize("mark", ["", "a,b", "a b", "a\nStop", "é"])
def test_a_mark_that_would_be_taken_for_a_command_is_refused(client, mark):
    with pytest.raises(BadInput, match="mark"):
        client.go(mark)


def test_a_range_that_the_meter_lacks_is_refused(client):
    with pytest.raises(MeterMissed, match="range not supported"):
        client.set_ranges(PtdRanges(volts=9_999.0, amps=None))
    with pytest.raises(BadInput):
        client.set_ranges(PtdRanges(volts=-1.0, amps=None))


@pytest.mark.parametrize(
    ("address", "parts"),
    [("host", ("host", 8888)), ("host:99", ("host", 99)), ("[::1]:99", ("::1", 99)), ("::1", ("::1", 8888))],
)
def test_addresses(address, parts):
    assert parse_address(address) == parts


@pytest.mark.parametrize("address", ["", ":8888", "host:0", "host:99999"])
def test_an_address_that_is_none_is_named(address):
    with pytest.raises(BadInput, match="no address"):
        parse_address(address)


@pytest.mark.parametrize(
    "line",
    ["", "Time", "Time,x,Watts,1,Volts,1,Amps,1,PF,1", "Time,01-01-2026 00:00:00.000,Watts,nan,Volts,1,Amps,1,PF,1"],
)
def test_a_line_that_is_no_sample_is_named(line):
    with pytest.raises(BadInput):
        parse_sample(line)


@given(watts=st.floats(-1e5, 1e5), volts=st.floats(0, 1e3))
def test_a_sample_is_read_as_it_was_written(watts, volts):
    line = f"Time,07-23-2024 17:08:50.389,Watts,{watts:.6f},Volts,{volts:.6f},Amps,1.000000,PF,0.900000"
    sample = parse_sample(line)
    assert (sample.power_w, sample.volts) == (float(f"{watts:.6f}"), float(f"{volts:.6f}"))
    assert sample.wall_s == 1721754530.389


@given(line=st.text(max_size=120))
def test_no_line_breaks_the_reading_of_samples(line):
    with contextlib.suppress(BadInput):
        parse_sample(line)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(replies=st.lists(st.binary(max_size=60), min_size=1, max_size=8))
def test_whatever_the_other_side_says_only_our_errors_come_out(replies):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"Hello, PTDaemon here!\r\n" + b"\r\n".join(replies) + b"\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        with contextlib.suppress(WattsmithError):
            client = PtdClient("127.0.0.1", server.getsockname()[1], timeout_s=0.5)
            for ask in (client.identify, client.ranges, client.average, client.samples, client.uncertainty_ratio):
                with contextlib.suppress(WattsmithError):
                    ask()
            client.close()
        thread.join()
