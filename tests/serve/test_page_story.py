"""The page of a real `wattsmith serve` in a real browser: a machine is matched, a plan made, a token revoked."""

import time

import pytest
from tests.serve import curves
from tests.serve.browsing import NEWS_MS, NO_BROWSER, both_widths, chromium, logged_in
from tests.serve.real_service import asking, served

pytestmark = NO_BROWSER
POOL = "nodes:\n  - {name: rack-1, device: h200, count: 2, power_limits: [200W, 700W]}\n"
JOBS = """\
jobs:
  - {name: resnet-50, steps: 72000, step: 100ms, power: 410W, deadline: 8h}
  - {name: bert-large, steps: 36000, step: 200ms, power: 520W, deadline: 8h}
  - {name: a-name-that-is-rather-long-for-a-lane, steps: 9000, step: 100ms, power: 300W}
"""
MACHINES = "nodes:\n  - {name: rack-1, device: h200, count: 2, idle: 75W}\n"


def over_hours(header, *values):
    """A series of hourly VALUES that begins with the hour, in CSV."""
    hour_s = 3600 * int(time.time() // 3600)
    return "\n".join([header, *(f"{hour_s + 3600 * place},{value}" for place, value in enumerate(values))])


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """URL and admin's token of a service with a record of curves, to which a client has sent a minute of telemetry."""
    home = tmp_path_factory.mktemp("story") / "home"
    with served(home, POOL, "--budget", "1400W") as (url, admin, _), asking(url, admin) as api:
        curves.fill_curves(str(home / "service.sqlite"))
        text = api.post("/tokens", json={"name": "edge-1", "role": "agent"}).json()["text"]
        with asking(url, text) as agent:
            agent.post("/clients/edge-1/hello", json=curves.ABOUT).raise_for_status()
            sent = {"reports": curves.reports(0.62, time.time())}
            agent.post("/clients/edge-1/telemetry", json=sent).raise_for_status()
        yield url, admin, api


def test_a_machine_is_matched_and_the_evidence_and_its_schedule_are_shown(browser, here):
    url, admin, _ = here
    with logged_in(browser, url, admin) as page:
        page.goto(f"{url}/machines/edge-1")
        both_widths(page, "story_machine_before")
        page.get_by_role("button", name="Match now").click()
        page.get_by_role("heading", name="Looks like convolutional").wait_for(timeout=60_000)
        assert page.locator(".neighbours tbody tr").count() >= 4
        curve = page.get_by_role("img", name="time and power over the power limit")
        assert curve.locator("path.line").count() == 3
        assert "12 recorded curves" in page.locator("figcaption").inner_text()
        both_widths(page, "story_match")
        page.get_by_role("link", name="edge-1").click()
        page.get_by_text("Evidence: matched").wait_for()
        both_widths(page, "story_machine_matched")
        page.goto(f"{url}/matches")
        page.get_by_role("row", name="convolutional").wait_for()
        both_widths(page, "story_matches")


def test_a_plan_is_made_in_the_form_and_shown_as_a_timeline(browser, here):
    url, admin, _ = here
    with logged_in(browser, url, admin, expected=("422",)) as page:
        page.get_by_role("link", name="Plans").click()
        page.get_by_label("Jobs, in YAML").fill(JOBS.replace("410W", "410 apples"))
        page.get_by_label("Pool, in YAML").fill(MACHINES)
        page.get_by_label("Budget").fill("1100W")
        page.get_by_label("Make least").select_option("carbon")
        page.get_by_text("Carbon, tariff and a deadline").click()
        page.get_by_label("Carbon over time").fill(
            over_hours("time,carbon_intensity", *(420, 380, 210, 150, 190, 340, 450, 480, 470, 460))
        )
        page.get_by_label("Tariff over time").fill(
            over_hours("time,price", *(0.3, 0.3, 0.12, 0.12, 0.1, 0.1, 0.31, 0.31, 0.3, 0.3))
        )
        page.get_by_role("button", name="Plan", exact=True).click()
        page.locator("form.plan .failed", has_text="apples").wait_for()
        both_widths(page, "story_plan_form")
        page.get_by_label("Jobs, in YAML").fill(JOBS)
        page.get_by_role("button", name="Plan", exact=True).click()
        page.get_by_role("heading", name="Least carbon").wait_for(timeout=60_000)
        assert page.locator(".piece").count() >= 3
        for signal in ("Carbon, g/kWh", "Tariff, money/kWh"):
            assert page.get_by_text(signal).count() == 1
        both_widths(page, "story_plan")
        page.get_by_role("link", name="Plans").first.click()
        page.get_by_role("row", name="carbon").wait_for()
        both_widths(page, "story_plans")


def test_a_token_is_made_used_revoked_and_put_off(browser, here):
    url, admin, _ = here
    with logged_in(browser, url, admin) as page:
        page.get_by_role("link", name="Tokens").click()
        page.get_by_label("Name of the person").fill("kim")
        page.get_by_label("Role").select_option("read")
        page.get_by_role("button", name="Make").click()
        shown = page.locator(".shown code")
        shown.wait_for()
        text = shown.inner_text()
        assert text.startswith("ws_")
        page.get_by_role("row", name="kim").wait_for(timeout=NEWS_MS)
        both_widths(page, "story_tokens")
        with logged_in(browser, url, text, expected=("401",)) as kims:
            row = page.get_by_role("row", name="kim")
            row.get_by_text("Revoke …").click()
            both_widths(page, "story_tokens_revoke")
            row.get_by_role("button", name="Revoke this token").click()
            row.get_by_text("revoked").wait_for(timeout=NEWS_MS)
            kims.get_by_text("revoked at").wait_for(timeout=30_000)  # put off without a click
            both_widths(kims, "story_put_off")
        page.get_by_role("link", name="Audit").click()
        page.get_by_role("row", name="revoke token").wait_for()
        both_widths(page, "story_audit")
