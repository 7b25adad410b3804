"""What the OpenAPI document promises, tried out with requests drawn from it, by each role, over a real socket."""

import os

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from tests.serve.serving_here import serving

# So many requests for each route; what a role is refused, test_roles.py has.
EXAMPLES = {
    ("admin", "positive"): 3,
    ("admin", "negative"): 3,
    ("agent", "positive"): 1,
    ("agent", "negative"): 1,
    ("submit", "positive"): 1,
    ("read", "positive"): 1,
    ("nobody", "positive"): 1,
}
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
LEFT_OUT = {"/api/v1/openapi.json", "/api/v1/tokens/{token}"}  # the document itself; revoking would end the test
QUICK = {"/api/v1/events": {"wait_s": 0.0}}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("schema"), rate_hz=1e6, burst=1e6) as here, here.listening() as url:
        yield here, url


@pytest.fixture(scope="module")
def document(here):
    return schemathesis.openapi.from_dict(here[0].app.openapi())


@pytest.mark.parametrize(("caller", "mode"), EXAMPLES)
def test_no_request_is_answered_otherwise_than_was_said(here, document, caller, mode):
    served, url = here
    headers = {} if caller == "nobody" else {"Authorization": f"Bearer {served.tokens[caller]}"}
    with requests.Session() as session:
        for operation in (one.ok() for one in document.get_all_operations()):
            nothing_to_say = not [*operation.iter_parameters(), *operation.body]
            if operation.path not in LEFT_OUT and not (mode == "negative" and nothing_to_say):
                _try_out(operation, mode, EXAMPLES[caller, mode], url, session, headers)


def _try_out(operation, mode, examples, url, session, headers):
    names = {"name": "rack-1"} if "{name}" in operation.path and mode == "positive" else None
    drawn = operation.as_strategy(
        schemathesis.GenerationMode(mode), path_parameters=names, query=QUICK.get(operation.path)
    )

    @hypothesis.given(case=drawn)
    @hypothesis.settings(
        max_examples=examples * int(os.environ.get("WATTSMITH_EXAMPLES", "1")),  # more, by hand
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def tried(case):
        case.call_and_validate(base_url=url, session=session, headers=headers, checks=CHECKS)

    tried()
