"""The page in a real browser: logged in, clicked through at two widths, live, and told when the connection is lost.

WATTSMITH_SCREENSHOTS=FOLDER keeps a picture of every page at both widths, to be looked at.
"""

from contextlib import contextmanager

import pytest
from tests.serve.browsing import DESK, NEWS_MS, NO_BROWSER, PHONE, WIDTHS, chromium, logged_in, overflow, picture
from tests.serve.page_facts import add_client, add_plan, showing, submit, token_of

pytestmark = NO_BROWSER


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    # Three runs are too few to match with, so that the shipped record is taken.
    with showing(tmp_path_factory.mktemp("browser"), runs=3) as here:
        add_client(here, "rack-1", reports=60)
        for place in range(3):
            add_client(here, f"edge-{place}", reports=60)
        here.jobs = [submit(here, "bert", 0.0), submit(here, "vit", deadline="1h")]
        here.plan = add_plan(here)
        with here.listening() as url:
            here.url = url
            yield here


@contextmanager
def visit(browser, here, role, width=DESK, scheme="light", expected=()):
    """A page that is logged in as ROLE."""
    with logged_in(browser, here.url, here.tokens[role], width, scheme, expected) as page:
        yield page


def unfold(page, is_open):
    page.evaluate("(open) => document.querySelectorAll('main details').forEach((one) => { one.open = open; })", is_open)


@pytest.mark.parametrize("width", WIDTHS)
def test_all_pages_are_clicked_through_and_fit(browser, here, width):
    with visit(browser, here, "admin", width) as page:
        for name in ("Overview", "Jobs", "Machines", "Record", "Matches", "Plans", "Tokens", "Audit"):
            page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
            page.locator("nav a[aria-current=page]", has_text=name).wait_for()
            assert page.title().endswith("Wattsmith")
            unfold(page, True)
            assert overflow(page) == [0, []], name
            unfold(page, False)
            picture(page, name.lower(), width)
        for name, path in (
            ("job", f"/jobs/{here.jobs[0]}"),
            ("machine", "/machines/edge-0"),
            ("plan", f"/plans/{here.plan}"),
        ):
            page.goto(here.url + path)
            page.get_by_role("heading", level=1).wait_for()
            page.wait_for_timeout(300)
            assert overflow(page) == [0, []], path
            picture(page, name, width)


def test_a_match_is_made_from_a_machine_and_shown_with_its_evidence(browser, here):
    with visit(browser, here, "submit") as page:
        page.goto(f"{here.url}/machines/edge-1")
        page.get_by_role("button", name="Match now").click()
        page.get_by_role("heading", name="Nearest in the record").wait_for(timeout=60_000)
        assert "/matches/" in page.url
        picture(page, "match", DESK)
        page.set_viewport_size({"width": PHONE, "height": 900})
        assert overflow(page) == [0, []]
        picture(page, "match", PHONE)


def test_a_job_that_is_submitted_meanwhile_appears_and_can_be_cancelled(browser, here):
    with visit(browser, here, "submit") as page:
        page.goto(f"{here.url}/jobs")
        page.evaluate("window.stayed = true")
        submit(here, "newcomer")
        page.get_by_role("link", name="newcomer").wait_for(timeout=NEWS_MS)
        assert page.evaluate("window.stayed"), "the page was loaded anew"
        page.get_by_role("link", name="newcomer").click()
        page.get_by_text("Cancel …").click()
        page.get_by_role("button", name="Cancel this job").click()
        page.locator("h1 .state.cancelled").wait_for(timeout=30_000)
        assert page.get_by_text("cancelled by submit").count() >= 1


def test_a_log_grows_while_one_looks_at_it(browser, here):
    with visit(browser, here, "admin") as page:
        job = submit(here, "talker", 0.0, role="admin")
        page.goto(f"{here.url}/jobs/{job}")
        page.locator("#log", has_text="talker begins").wait_for(timeout=30_000)


def test_a_budget_is_set_and_nonsense_is_answered(browser, here):
    with visit(browser, here, "admin", expected=("422",)) as page:
        page.get_by_text("Change the budget").click()
        page.get_by_label("Budget").fill("ten")
        page.get_by_role("button", name="Set").click()
        page.locator(".failed", has_text="ten").wait_for()
        page.get_by_label("Budget").fill("50kW")
        page.get_by_role("button", name="Set").click()
        page.get_by_text("of 50 kW").or_(page.get_by_text("50 kW")).first.wait_for(timeout=NEWS_MS)


def test_what_is_unfolded_and_typed_stays_when_the_page_is_fetched_again(browser, here):
    with visit(browser, here, "admin") as page:
        page.get_by_text("Change the budget").click()
        page.get_by_label("Budget").fill("12k")
        submit(here, "another", 0.0)
        page.locator("tr", has_text="another").first.wait_for(timeout=NEWS_MS)
        assert page.get_by_label("Budget").input_value() == "12k"
        assert page.get_by_label("Budget").evaluate("one => one === document.activeElement")


def test_a_lost_connection_is_told_with_its_time_and_comes_back(browser, here):
    with visit(browser, here, "read", expected=("ERR_INTERNET_DISCONNECTED",)) as page:
        page.context.set_offline(True)
        page.locator("#lost", has_text="connection to the service is lost since").wait_for(timeout=NEWS_MS)
        page.locator("#live.is-lost", has_text="not live").wait_for()
        picture(page, "lost", DESK)
        page.context.set_offline(False)
        page.locator("#lost").wait_for(state="hidden", timeout=NEWS_MS)
        page.locator("#live:not(.is-lost)").wait_for()


def test_a_revoked_token_is_refused_with_the_reason(browser, here):
    with visit(browser, here, "read", expected=("401",)) as page:
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").wait_for()
        late = here.add_token("late", token_of(here, "read").role)
        here.service.revoke_token(here.ids[late], "tests")
        page.get_by_label("Token").fill(late)
        page.get_by_role("button", name="Log in").click()
        page.locator(".failed", has_text="this token was revoked at").wait_for()
        picture(page, "login", DESK)


def test_pages_are_read_with_the_keyboard_and_in_the_dark(browser, here):
    with visit(browser, here, "read", scheme="dark") as page:
        page.keyboard.press("Tab")
        assert page.locator(":focus").inner_text() == "To the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(20, 22, 25)"
        picture(page, "overview_dark", DESK)
