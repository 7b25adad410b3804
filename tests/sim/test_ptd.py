import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.sim.clock import SimulatedClock
from wattsmith.sim.ptd import SimulatedPtd, stamp


@pytest.fixture
def clock():
    return SimulatedClock(1_000.0)


@pytest.fixture
def daemon(clock):
    daemon = SimulatedPtd(power_w=200.0, wall_s=clock.now_s)
    yield daemon
    daemon._listener.close()


def measure(daemon, clock, duration_s, mark="s_testing"):
    daemon.answer(f"Go,1000,0,{mark}")
    clock.sleep_s(duration_s)
    return daemon.answer("Stop")


def test_it_names_itself_in_model_version_system_and_vendor(daemon):
    said = daemon.answer("Identify").split(",")
    named = [field for field in said if "simulated" in field.lower()]
    assert len(named) == 4


def test_its_log_says_that_it_is_not_the_real_daemon(daemon):
    with daemon:
        assert "not SPEC PTDaemon" in daemon.log_lines[0]


def test_ten_seconds_at_one_sample_a_second_hold_eleven_samples(daemon, clock):
    measure(daemon, clock, 10.0)
    assert daemon.answer("RL").splitlines()[0] == "Last 11 samples"
    assert daemon.answer("Watts") == "Watts,200.000000,200.000000,200.000000,11,0,11"


def test_power_that_changes_is_sampled_as_it_was(daemon, clock):
    daemon.answer("Go,1000,0,m")
    clock.sleep_s(4.5)
    daemon.power_w = 400.0
    clock.sleep_s(5.0)
    daemon.answer("Stop")
    assert daemon.answer("Watts") == "Watts,300.000000,200.000000,400.000000,10,0,10"


def test_a_current_beyond_the_range_is_an_error_and_a_negated_reading(daemon, clock):
    daemon.answer("SR,A,0.5")  # 200 W at 230 V draw 0.887 A
    measure(daemon, clock, 2.0)
    assert daemon.answer("RL").splitlines()[1].split(",")[3] == "-200.000000"
    assert daemon.answer("Watts").endswith(",3,3,0")


def test_a_range_is_the_next_larger_one_that_the_meter_has(daemon):
    assert daemon.answer("SR,A,1.1") == "Range A changed"
    assert daemon.answer("RR") == "Ranges,0,2.000000,0,300.000000"


def test_under_an_automatic_range_the_uncertainty_is_unknown(daemon, clock):
    daemon.answer("SR,A,Auto")
    measure(daemon, clock, 4.0)
    assert daemon.answer("Uncertainty") == "Uncertainty,-1.0,10000000.000000,0.000000,5,0,0,5"


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ("Stop", "Error: no measurement to stop"),
        ("SR,V,9999", "Error: range not supported"),
        ("SR,W,3", "Error: invalid range command"),
        ("SR", "Error: invalid range command"),
        ("Go,0,0,m", "Error: invalid go command"),
        ("RL,*,*", "Invalid number of parameters"),
        ("DC-RL", "Unknown command"),
        ("", "Unknown command"),
    ],
)
def test_a_wrong_command_gets_the_reply_of_the_protocol(daemon, command, reply):
    assert daemon.answer(command) == reply


def test_ranges_cannot_change_while_it_measures(daemon):
    daemon.answer("Go,1000,0,m")
    assert daemon.answer("SR,V,Auto") == "Error: measurement in progress"
    assert daemon.answer("Go,1000,0,n") == "Error: measurement in progress"


def test_channels_add_up_to_their_sum(clock):
    daemon = SimulatedPtd(power_w=300.0, channels=3, wall_s=clock.now_s)
    measure(daemon, clock, 0.5)
    head, line = daemon.answer("RL,*,*").splitlines()
    daemon._listener.close()
    assert head == "Last 1 samples from sum channel and channels 1 - 3"
    assert [field for field in line.split(",") if field.endswith("00.000000")] == ["300.000000", *["100.000000"] * 3]


def test_samples_go_to_a_file_with_their_mark(tmp_path, clock):
    daemon = SimulatedPtd(power_w=10.0, data_log=tmp_path / "data.txt", wall_s=clock.now_s)
    measure(daemon, clock, 1.0, mark="s_ranging")
    daemon._listener.close()
    lines = (tmp_path / "data.txt").read_text().splitlines()
    assert lines[0].startswith("Time,01-01-1970 00:16:40.000,Watts,10.000000,Volts,230.000000,")
    assert [line.endswith(",Mark,s_ranging") for line in lines] == [True, True]


def test_a_moment_is_written_month_first():
    assert stamp(86_400.5) == "01-02-1970 00:00:00.500"


@given(command=st.text(max_size=30))
def test_no_command_breaks_it(command):
    daemon = SimulatedPtd()
    try:
        assert daemon.answer(command)
    finally:
        daemon._listener.close()
