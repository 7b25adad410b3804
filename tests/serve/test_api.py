"""The routes of the API: what they take and give, and how they refuse."""

import base64
import json
import time

import pytest
from tests.serve.serving_here import serving

from wattsmith import __version__
from wattsmith.terms.facts import as_plain
from wattsmith.terms.service import Role
from wattsmith.terms.work_schedule import WorkSchedule


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("api"), rate_hz=1e6, burst=1e6) as here:
        yield here


def report(number, boot="b1", **more):
    return {"boot": boot, "number": number, "time_s": 1000.0, **more}


def schedule_for(client):
    return as_plain(
        WorkSchedule(client=client, issued_s=0.0, valid_from_s=0.0, valid_until_s=1e10, serial=0, devices=(), works=())
    )


def test_health_tells_the_version_and_the_time(here):
    health = here.client.get("/api/v1/health").json()
    assert health["status"] == "ok"
    assert health["version"] == __version__
    assert abs(health["time_s"] - here.service.now_s()) < 60


def test_whoami_tells_name_and_role_and_no_secret(here):
    answer = here.ask("submit", "GET", "/whoami")
    assert (answer.json()["name"], answer.json()["role"]) == ("submit", "submit")
    assert here.tokens["submit"].rpartition("_")[2] not in answer.text


def test_the_budget_is_set_with_units_and_taken_away(here):
    assert here.ask("admin", "PUT", "/pool/budget", {"budget": "10kW"}).json()["budget_w"] == 10_000
    assert here.ask("admin", "PUT", "/pool/budget", {"budget": 800}).json()["budget_w"] == 800
    assert here.ask("admin", "PUT", "/pool/budget", {"budget": None}).json()["budget_w"] is None


@pytest.mark.parametrize("budget", ["10", "10kJ", -5, 0, True, [], "x" * 5000])
def test_a_budget_that_makes_no_sense_is_refused(here, budget):
    answer = here.ask("admin", "PUT", "/pool/budget", {"budget": budget})
    assert answer.status_code == 422
    assert len(answer.json()["error"]["message"]) <= 2000


def test_reports_are_counted_once(here):
    first = here.ask("agent", "POST", "/clients/rack-1/telemetry", {"reports": [report(1), report(2)]}).json()
    again = here.ask("agent", "POST", "/clients/rack-1/telemetry", {"reports": [report(2), report(3)]}).json()
    assert (first["accepted"], first["duplicates"]) == (2, 0)
    assert (again["accepted"], again["duplicates"]) == (1, 1)
    kept = here.ask("read", "GET", "/clients/rack-1/telemetry?limit=2").json()["reports"]
    assert [one["report"]["number"] for one in kept] == [2, 3]
    assert here.ask("read", "GET", "/clients/rack-1").json()["latest"]["number"] == 3


def test_a_newer_agent_may_send_what_is_not_known_here(here):
    sent = report(50, mood="fine", domains={"gpu:0": {"power_w": 300, "colour": "red"}})
    assert here.ask("agent", "POST", "/clients/rack-1/telemetry", {"reports": [sent]}).json()["accepted"] == 1


def test_every_wrong_field_of_a_report_is_named(here):
    wrong = {"reports": [report(0), report("7"), {"boot": "../../x", "number": 1, "time_s": 1}]}
    answer = here.ask("agent", "POST", "/clients/rack-1/telemetry", wrong)
    assert answer.status_code == 422
    assert [one["where"] for one in answer.json()["error"]["fields"]] == [
        "reports[0]",
        "reports[1].number",
        "reports[2]",
    ]


def test_an_agent_of_another_version_is_told(here):
    ours = here.ask("agent", "POST", "/clients/rack-1/hello", {"version": __version__, "host": "a"}).json()
    older = here.ask("agent", "POST", "/clients/rack-1/hello", {"version": "0.0.9", "host": "a", "new": 1}).json()
    assert (ours["version"], ours["note"]) == (__version__, None)
    assert "0.0.9" in older["note"]


def test_a_work_schedule_is_fetched_once_and_then_not_again(here):
    agent = here.tokens["schedule agent"] = here.add_token("rack-9", Role.AGENT)
    assert agent
    here.ask("schedule agent", "POST", "/clients/rack-9/hello", {"version": __version__, "host": "a"})
    assert here.ask("schedule agent", "GET", "/clients/rack-9/schedule").status_code == 404
    kept = here.ask("admin", "PUT", "/clients/rack-9/schedule", schedule_for("rack-9"))
    assert kept.status_code == 200, kept.text
    first = here.ask("schedule agent", "GET", "/clients/rack-9/schedule")
    assert first.json()["client"] == "rack-9"
    assert first.headers["etag"] == f'"{first.json()["serial"]}"'
    tag = {"If-None-Match": first.headers["etag"]}
    assert here.ask("schedule agent", "GET", "/clients/rack-9/schedule", headers=tag).status_code == 304
    here.ask("admin", "PUT", "/clients/rack-9/schedule", schedule_for("rack-9"))
    later = here.ask("schedule agent", "GET", "/clients/rack-9/schedule", headers=tag)
    assert later.status_code == 200
    assert later.json()["serial"] > first.json()["serial"]


def test_a_schedule_for_another_client_is_refused(here):
    answer = here.ask("admin", "PUT", "/clients/rack-9/schedule", schedule_for("rack-8"))
    assert answer.status_code == 422
    assert "rack-8" in answer.json()["error"]["message"]


def test_a_token_is_made_used_and_revoked_over_http(here):
    made = here.ask("admin", "POST", "/tokens", {"name": "kim", "role": "submit"})
    assert made.status_code == 201
    here.tokens["kim"] = made.json()["text"]
    assert here.ask("kim", "GET", "/whoami").json()["name"] == "kim"
    assert here.tokens["kim"] not in here.ask("admin", "GET", "/tokens").text
    token = made.json()["token"]["id"]
    assert here.ask("admin", "DELETE", f"/tokens/{token}").status_code == 204
    assert "revoked" in here.ask("kim", "GET", "/whoami").json()["error"]["message"]
    assert here.ask("admin", "DELETE", f"/tokens/{token}").status_code in (404, 409)
    done = [(one["what"], one["on"]) for one in here.ask("admin", "GET", "/audit").json()["entries"]]
    assert len([one for one in done if token in one[1] or "kim" in one[1]]) >= 2


def test_a_job_is_submitted_listed_and_cancelled(here):
    body = {"job": job("sleep"), "files": {"train.py": base64.b64encode(b"print('hello')").decode()}, "once": "one"}
    made = here.ask("submit", "POST", "/jobs", body)
    assert made.status_code == 201, made.text
    again = here.ask("submit", "POST", "/jobs", body)
    assert again.json()["id"] == made.json()["id"]
    found = here.ask("read", "GET", "/jobs?by=submit").json()["jobs"]
    assert [one["id"] for one in found] == [made.json()["id"]]
    assert here.ask("read", "GET", f"/jobs/{made.json()['id']}").json()["name"] == "sleep"
    log = here.ask("read", "GET", f"/jobs/{made.json()['id']}/log")
    assert log.status_code in (200, 404)
    stopped = here.ask("submit", "POST", f"/jobs/{made.json()['id']}/cancel")
    assert stopped.status_code == 200, stopped.text
    assert stopped.json()["state"] in ("cancelled", "stopping")


def test_only_who_submitted_a_job_or_an_admin_cancels_it(here):
    here.tokens["another"] = here.add_token("another", Role.SUBMIT)
    made = here.ask("submit", "POST", "/jobs", {"job": job("mine")}).json()["id"]
    assert here.ask("another", "POST", f"/jobs/{made}/cancel").status_code == 403
    assert here.ask("admin", "POST", f"/jobs/{made}/cancel").status_code == 200


def job(name):
    return {
        "name": name,
        "command": ["python", "-c", "import time; time.sleep(60)"],
        "steps": 1000,
        "step": "50ms",
        "power": "30W",
    }


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "a/../../b", "..", "a\x00b", "", "x" * 10_000, ".", "a//b", "C:\\x", "~/x"],
)
def test_a_file_with_a_tricky_name_is_refused(here, name):
    answer = here.ask("submit", "POST", "/jobs", {"job": job("tricky"), "files": {name: "eA=="}})
    assert answer.status_code == 422, answer.text


def test_files_that_are_no_base64_are_named(here):
    answer = here.ask("submit", "POST", "/jobs", {"job": job("x"), "files": {"a.py": "!", "b.py": "eA=="}})
    assert [one["where"] for one in answer.json()["error"]["fields"]] == ["files.a.py"]


def test_wrong_fields_of_a_job_file_are_named_with_their_lines(here):
    text = "name: a\ncommand: [python, train.py]\nstepz: 5\ndeadline: whenever\n"
    answer = here.ask("submit", "POST", "/jobs", {"job": text})
    assert answer.status_code == 422
    fields = answer.json()["error"]["fields"]
    assert {3, 4} <= {one["line"] for one in fields}, fields


@pytest.mark.parametrize(
    "name",
    ["..", "%2e%2e", "%2E%2E%2Fx", "a%00b", "a%0ab", "a" * 10_000, "-a", ".a", "a%20b", "%ff", "a%c0%ae", "a\\b"],
)
@pytest.mark.parametrize("path", ["/clients/{}", "/jobs/{}", "/plans/{}", "/matches/{}", "/structures/{}"])
def test_a_name_in_a_path_cannot_be_a_way_to_files(here, path, name):
    answer = here.ask("admin", "GET", path.format(name))
    assert answer.status_code in (404, 422)
    assert set(answer.json()) == {"error"}
    assert len(answer.text) < 10_000


def test_the_name_of_an_agent_cannot_leave_its_place(here):
    for name in ("..%2Frack-1", "rack-1%00", "rack-1%2F..", "Rack-1"):
        answer = here.ask("agent", "POST", f"/clients/{name}/telemetry", {"reports": [report(1)]})
        assert answer.status_code in (403, 404, 422)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b'{"reports": ' + b"[" * 5000, 400),
        (b"[]", 422),
        (b"null", 422),
        (b'{"reports": null}', 422),
        (b'{"reports": [{"boot": "a", "number": 1, "time_s": NaN}]}', 422),
        (b'{"reports": [{"boot": "a", "number": 1, "time_s": 1e999}]}', 422),
        (b'{"reports": [{"boot": "a", "number": 1' + b"0" * 30 + b', "time_s": 1}]}', 422),
        (b'{"reports": [{"boot": "a", "number": 1, "time_s": 1, "refused": ["\\u0000"]}]}', 422),
        (b'{"reports": [{"boot": "a", "number": 1, "time_s": 1, "refused": ["\\ud800"]}]}', 400),
    ],
)
def test_bytes_that_are_no_reports_are_refused(here, body, status):
    headers = {"Content-Type": "application/json"}
    answer = here.ask("agent", "POST", "/clients/rack-1/telemetry", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) == {"kind", "message", "fields"}


def test_a_body_of_another_kind_is_refused(here):
    answer = here.ask("agent", "POST", "/clients/rack-1/hello", data={"a": "b"})
    assert answer.status_code == 415
    packed = here.ask("agent", "POST", "/clients/rack-1/hello", {}, headers={"Content-Encoding": "gzip"})
    assert (packed.status_code, "not packed" in packed.json()["error"]["message"]) == (415, True)


def test_what_is_not_there_is_told_in_the_same_form(here):
    nothing, method = here.ask("read", "GET", "/nothing"), here.ask("read", "DELETE", "/health")
    assert (nothing.status_code, nothing.json()["error"]["kind"]) == (404, "no such thing")
    assert (method.status_code, method.json()["error"]["kind"]) == (405, "no such method")
    assert method.headers["allow"] == "GET"


def test_the_page_signs_in_by_cookie_and_strangers_cannot_use_it(here):
    with here.browser() as browser:
        signed = browser.post("/api/v1/login", json={"token": here.tokens["admin"]})
        assert signed.json()["role"] == "admin"
        cookie = signed.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert browser.get("/api/v1/whoami").json()["name"] == "admin"
        assert browser.put("/api/v1/pool/budget", json={"budget": None}).status_code == 403
        own = {"X-Wattsmith": "1"}
        assert browser.put("/api/v1/pool/budget", json={"budget": None}, headers=own).status_code == 200
        assert browser.post("/api/v1/logout").status_code == 204
        assert browser.get("/api/v1/whoami").status_code == 401


def test_nobody_signs_in_with_a_wrong_token(here):
    answer = here.client.post("/api/v1/login", json={"token": "ws_a_b"})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_signing_in_looks_at_the_token_that_was_sent_and_not_at_who_sent_it(here):
    known = {"Authorization": f"Bearer {here.tokens['read']}"}
    here.client.get("/api/v1/whoami", headers=known)  # known from a moment ago
    wrong = here.client.post("/api/v1/login", json={"token": "ws_a_b"}, headers=known)
    assert wrong.status_code == 401
    right = here.client.post("/api/v1/login", json={"token": here.tokens["submit"]}, headers=known)
    assert right.json()["role"] == "submit"


def test_behind_tls_the_cookie_is_secure(here):
    answer = here.client.post("https://localhost/api/v1/login", json={"token": here.tokens["read"]})
    assert "; Secure" in answer.headers["set-cookie"]


def test_events_come_as_soon_as_something_changes(here):
    after = here.ask("read", "GET", "/events?wait_s=0").json()["after"]
    assert here.ask("read", "GET", f"/events?after={after}&wait_s=0").json()["events"] == []
    here.ask("submit", "POST", "/jobs", {"job": job("news")})
    found = here.ask("read", "GET", f"/events?after={after}&wait_s=20").json()
    assert "job" in {one["kind"] for one in found["events"]}
    assert found["after"] > after


def test_metrics_are_what_prometheus_reads(here):
    answer = here.client.get("/metrics", headers={"Authorization": f"Bearer {here.tokens['read']}"})
    assert answer.headers["content-type"].startswith("text/plain")
    assert "wattsmith_" in answer.text


def test_a_plan_is_made_kept_and_found_again(here):
    jobs = json.dumps({"jobs": [{k: v for k, v in job("a").items() if k != "command"}]})
    pool = json.dumps({"nodes": [{"name": "n", "device": "h200", "count": 2}]})
    made = here.ask("submit", "POST", "/plans", {"jobs": jobs, "pool": pool, "budget": "5kW"})
    assert made.status_code == 201, made.text
    assert here.ask("read", "GET", f"/plans/{made.json()['key']}").status_code == 200
    assert made.json()["key"] in [one["key"] for one in here.ask("read", "GET", "/plans").json()["plans"]]


def planned(here, **asked):
    """The answer to a plan of one job of an hour, with more FIELDS and ASKED."""
    written = {"name": "a", "steps": 3600, "step": "1s", "power": "300W", **asked.pop("fields", {})}
    pool = json.dumps({"nodes": [{"name": "n", "device": "h200", "count": 2}]})
    asked = {"jobs": json.dumps({"jobs": [written]}), "pool": pool, **asked}
    return here.ask("submit", "POST", "/plans", asked)


def test_a_plan_waits_for_clean_and_cheap_hours_and_keeps_how_they_were(here):
    hour_s = 3600 * int(time.time() // 3600)
    carbon = "time,carbon_intensity\n" + "\n".join(
        f"{hour_s + 3600 * n},{v}" for n, v in enumerate([500, 500, 100, 500])
    )
    made = planned(here, objective="carbon", carbon=carbon, fields={"deadline": "3h"})
    assert made.status_code == 201, made.text
    kept = here.ask("read", "GET", f"/plans/{made.json()['key']}").json()
    assert {one["kind"] for one in kept["signals"]} == {"carbon"}
    assert kept["signals"][0]["span"]["from_s"] == kept["plan"]["begin_s"]
    assert kept["plan"]["emitted_g"] < 0.3 * 500  # 0.3 kWh
    refused = planned(here, objective="carbon", carbon="time,carbon_intensity\n1,2\n1,apples").json()["error"]
    assert refused["fields"][0]["where"] == "carbon.csv"
    assert str(here.home) not in json.dumps(refused)


@pytest.mark.parametrize(
    ("fields", "pool", "says"),
    [
        ({"steps": 1e308}, {}, "more than ten years"),
        ({"steps": 1e15}, {}, "more than ten years"),
        ({"deadline": "1e300h"}, {}, "after the year 9999"),
        ({"deadline": "9999999d"}, {}, "after the year 9999"),
        ({}, {"count": 1_000_000_000}, "up to 10,000 devices"),
        ({}, {"budget": "1W"}, "budget"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused_at_once_with_the_reason(here, fields, pool, says):
    began_s = time.monotonic()
    machines = {"nodes": [{"name": "n", "device": "h200", "count": pool.pop("count", 2), "idle": "75W"}]}
    answer = planned(here, fields=fields, pool=json.dumps(machines), **pool)
    assert answer.status_code == 422, answer.text
    assert says in answer.json()["error"]["message"]
    assert time.monotonic() - began_s < 20


def test_a_plan_of_too_many_jobs_is_refused(here):
    many = json.dumps({"jobs": [{"name": f"j{n}", "steps": 10, "step": "1s", "power": "300W"} for n in range(501)]})
    pool = json.dumps({"nodes": [{"name": "n", "device": "h200"}]})
    answer = here.ask("submit", "POST", "/plans", {"jobs": many, "pool": pool})
    assert (answer.status_code, "up to 500 jobs" in answer.text) == (422, True)


def test_an_error_that_holds_what_was_sent_is_read_quickly(here):
    began_s = time.monotonic()
    answer = planned(here, objective="carbon", carbon='"x\n' + 40 * "a." + '!",y\n1,2\n3,4')
    assert answer.status_code == 422
    assert time.monotonic() - began_s < 10  # a pattern that tries every way to read it would take years


@pytest.mark.parametrize("name", ["/etc/passwd", "/dev/zero", "../admin-token", "pool.yaml", "m-0123"])
def test_a_plan_reads_no_file_of_the_service(here, name):
    answer = planned(here, fields={"match": name})
    assert answer.status_code == 422
    assert "there is no match" in answer.json()["error"]["fields"][0]["reason"]


def test_a_token_that_asks_too_often_is_told_to_wait(tmp_path):
    with serving(tmp_path, rate_hz=0.5, burst=5) as here:
        statuses = [here.ask("read", "GET", "/whoami").status_code for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
        told = here.ask("read", "GET", "/whoami")
        assert 1 <= int(told.headers["retry-after"]) <= 2
        assert here.ask("submit", "GET", "/whoami").status_code == 200
        assert [here.client.get("/api/v1/whoami").status_code for _ in range(7)] == [401] * 5 + [429] * 2


def test_a_body_that_is_too_large_is_refused_with_and_without_its_length(here):
    much = b" " * ((16 << 20) + 1)
    headers = {"Content-Type": "application/json"}
    for content in (much, iter([much[: 1 << 23], much[: 1 << 23], b" "])):
        answer = here.ask("agent", "POST", "/clients/rack-1/telemetry", content=content, headers=headers)
        assert answer.status_code == 413


def test_a_stranger_s_body_is_not_read(here):
    def never():
        yield b"x"
        raise AssertionError("it was read")

    try:
        status = here.client.post("/api/v1/jobs", content=never()).status_code
    except AssertionError:  # the client without a network reads it all itself
        return
    assert status == 401
