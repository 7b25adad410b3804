import math
import shutil
import ssl
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contracts.meter import MeterContract

from wattsmith.measure.redfish import find_redfish
from wattsmith.sim.clock import SimulatedClock
from wattsmith.sim.redfish import CHASSIS, SimulatedRedfish
from wattsmith.terms.energy import PowerSample, Source
from wattsmith.terms.errors import BadInput, MeterLost, MeterMissed, MeterUnavailable

METRICS = f"{CHASSIS}/EnvironmentMetrics"
SECRET = "open-sesame"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(100.0)


class TestRedfishMeter(MeterContract):
    @pytest.fixture(params=[("environment", None), ("environment", 44_442_000.0), ("power", None), ("mean", None)])
    def service(self, request):
        layout, energy_j = request.param
        with SimulatedRedfish(layout=layout, energy_j=energy_j) as service:
            yield service

    @pytest.fixture
    def meter(self, service, clock):
        return find_redfish(clock, service.url)[0]

    @pytest.fixture
    def advance(self, service, clock):
        def advance(duration_s: float) -> None:
            clock.sleep_s(duration_s)
            service.advance(duration_s)

        return advance


@pytest.fixture
def service():
    with SimulatedRedfish(power_w=300.0) as service:
        yield service


@pytest.mark.parametrize("layout", ["environment", "power"])
def test_both_layouts_tell_the_power_now(clock, layout):
    with SimulatedRedfish(layout=layout, power_w=300.0) as service:
        meter = find_redfish(clock, service.url)[0]
        service.power_w = 450.0
        assert meter.read(counter=False).power == (PowerSample(100.0, 450.0),)


def test_the_node_encloses_all_that_is_in_it_and_names_itself(service, clock):
    card = find_redfish(clock, service.url)[0].card
    assert card.domain == "node:0"
    assert card.source is Source.EXTERNAL
    assert {"gpu", "cpu-package", "dram", "psys", "soc"} <= set(card.encloses)
    assert card.simulated
    assert "simulated" in card.name


def test_a_mean_over_minutes_is_stated_as_such(clock):
    with SimulatedRedfish(layout="mean", power_w=200.0) as service:
        card = find_redfish(clock, service.url)[0].card
    assert card.power_window_s == 60.0
    assert card.power_period_s == 60.0


def test_kilowatt_hours_are_counted_in_joules(clock):
    with SimulatedRedfish(energy_j=5_403_600.0, power_w=3_600.0) as service:
        meter = find_redfish(clock, service.url)[0]
        assert meter.read(counter=True).counter.energy_j == pytest.approx(5_403_600.0)
        service.advance(10.0)
        assert meter.read(counter=True).counter.energy_j == pytest.approx(5_439_600.0)


def test_a_counter_of_watt_hours_says_how_coarse_it_is(clock):
    with SimulatedRedfish(energy_j=44_442_000.0, power_w=360.0) as service:
        card = find_redfish(clock, service.url)[0].card
    assert card.counter_period_s == pytest.approx(10.0)  # 1 Wh is 3600 J
    assert "coarse" in card.note


def test_a_reset_counter_goes_on_and_owns_up(clock):
    with SimulatedRedfish(energy_j=7_203_600.0) as service:
        meter = find_redfish(clock, service.url)[0]
        meter.read(counter=True)
        service.energy_j = 3_600.0
        readings = meter.read(counter=True)
    assert readings.counter.energy_j == pytest.approx(7_207_200.0)
    assert readings.missed == 1
    assert "reset" in readings.why_missed


@pytest.mark.parametrize("failure", ["broken", "error", "null"])
def test_a_passing_failure_is_missed(service, clock, failure):
    meter = find_redfish(clock, service.url)[0]
    service.failure = failure
    with pytest.raises(MeterMissed):
        meter.read(counter=True)
    service.failure = None
    assert meter.read(counter=True).power


def test_a_slow_answer_is_missed(service, clock):
    meter = find_redfish(clock, service.url, timeout_s=0.1)[0]
    service.failure = "slow"
    with pytest.raises(MeterMissed, match=r"did not answer within 0.1 s"):
        meter.read(counter=False)


@pytest.mark.parametrize("failure", ["refused", "gone"])
def test_a_lasting_failure_loses_the_meter(service, clock, failure):
    meter = find_redfish(clock, service.url)[0]
    service.failure = failure
    with pytest.raises(MeterLost):
        meter.read(counter=False)


def test_nobody_at_the_address_says_so(clock):
    with SimulatedRedfish() as service:
        url = service.url
    with pytest.raises(MeterUnavailable, match=r"127\.0\.0\.1 did not answer.*Check the address"):
        find_redfish(clock, url)


def test_a_user_without_a_password_is_told_where_to_put_it(clock, monkeypatch):
    monkeypatch.delenv("WATTSMITH_REDFISH_PASSWORD", raising=False)
    with pytest.raises(MeterUnavailable, match="WATTSMITH_REDFISH_PASSWORD"):
        find_redfish(clock, "https://operator@bmc.invalid")


def test_the_password_comes_from_the_environment(clock, monkeypatch):
    monkeypatch.setenv("WATTSMITH_REDFISH_PASSWORD", SECRET)
    with SimulatedRedfish(user="operator", password=SECRET) as service:
        assert find_redfish(clock, service.url)[0].read(counter=False).power


def test_a_wrong_password_is_told_and_never_shown(clock):
    with (
        SimulatedRedfish(user="operator", password=SECRET) as service,
        pytest.raises(MeterUnavailable, match=r"refuses these credentials.*HTTP 401") as told,
    ):
        find_redfish(clock, service.url, password="guessed-wrong")
    assert "guessed-wrong" not in str(told.value)


def test_a_session_token_serves_instead(clock):
    with SimulatedRedfish(token=SECRET) as service:
        assert find_redfish(clock, service.url, token=SECRET)[0].read(counter=False).power


@pytest.mark.parametrize("url", ["bmc-17", "ftp://bmc-17", "https://", "https://[::1", "https://bmc:port", ""])
def test_what_is_no_address_is_refused(clock, url):
    with pytest.raises(BadInput, match="https://user@host"):
        find_redfish(clock, url)


def test_a_password_in_the_address_is_refused_and_not_repeated(clock):
    with pytest.raises(BadInput, match="WATTSMITH_REDFISH_PASSWORD") as told:
        find_redfish(clock, f"https://operator:{SECRET}@bmc-17")
    assert SECRET not in str(told.value)


def test_a_password_is_not_sent_in_the_clear(clock):
    with pytest.raises(BadInput, match="in the clear"):
        find_redfish(clock, "http://operator@bmc-17", password=SECRET)


def two_chassis(service, **more) -> None:
    service.documents |= {
        "/redfish/v1/Chassis": {"Members": [{"@odata.id": CHASSIS}, {"@odata.id": "/redfish/v1/Chassis/Other"}]},
        "/redfish/v1/Chassis/Other": {"EnvironmentMetrics": {"@odata.id": "/other"}, **more},
        "/other": {"PowerWatts": {"Reading": 70.0}},
    }


def test_a_gpu_module_is_not_taken_for_the_node(service, clock):
    two_chassis(service, ChassisType="Module")
    assert find_redfish(clock, service.url)[0].read(counter=False).power[0].power_w == 300.0


def test_a_sled_inside_the_chassis_is_not_taken_for_the_node(service, clock):
    two_chassis(service, Links={"ContainedBy": {"@odata.id": CHASSIS}})
    assert find_redfish(clock, service.url)[0].read(counter=False).power[0].power_w == 300.0


def test_two_nodes_behind_one_controller_must_be_told_apart_by_path(service, clock):
    two_chassis(service)
    with pytest.raises(MeterUnavailable, match=r"2 chassis.*Self.*Other.*Put the path"):
        find_redfish(clock, service.url)
    meter = find_redfish(clock, f"{service.url}/redfish/v1/Chassis/Other")[0]
    assert meter.read(counter=False).power[0].power_w == 70.0


def test_a_link_that_leads_nowhere_gives_way_to_the_next(service, clock):
    service.documents |= {
        CHASSIS: {"EnvironmentMetrics": {"@odata.id": "/nowhere"}, "Power": {"@odata.id": "/power"}},
        "/power": {"PowerControl": [{"PowerConsumedWatts": 123}]},
    }
    assert find_redfish(clock, service.url)[0].read(counter=False).power[0].power_w == 123.0


def test_a_link_to_another_host_is_not_followed(service, clock):
    service.documents[CHASSIS] = {"EnvironmentMetrics": {"@odata.id": "@elsewhere.invalid/steal"}}
    with pytest.raises(MeterUnavailable, match="none of the 1 chassis"):
        find_redfish(clock, service.url)


def test_zero_watts_is_unknown(service, clock):
    service.power_w = 0.0
    with pytest.raises(MeterUnavailable, match="tells its power"):
        find_redfish(clock, service.url)


@pytest.fixture(scope="module")
def shared_service():
    with SimulatedRedfish() as service:
        yield service


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["PowerWatts", "Reading", "EnergykWh", "PowerControl", "PowerConsumedWatts", "Members"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd=json_values, path=st.sampled_from(["/redfish/v1/", "/redfish/v1/Chassis", CHASSIS, METRICS]))
def test_answers_of_odd_shapes_are_a_clear_error_or_a_positive_power(shared_service, odd, path):
    shared_service.documents = {path: odd}
    try:
        meter = find_redfish(SimulatedClock(), shared_service.url)[0]
        readings = meter.read(counter=True)
    except MeterUnavailable:
        return
    assert all(sample.power_w > 0 and math.isfinite(sample.power_w) for sample in readings.power)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="NOT CHECKED: no openssl to make a certificate with")
def test_a_certificate_nobody_vouches_for_is_refused_unless_told_insecure(clock, tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=bmc -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with SimulatedRedfish(tls=tls) as service:
        with pytest.raises(MeterUnavailable, match=r"certificate of 127\.0\.0\.1 cannot be checked"):
            find_redfish(clock, service.url)
        assert find_redfish(clock, service.url, insecure=True)[0].read(counter=False).power
