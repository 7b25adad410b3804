"""What a command printed with `--json`, held against its published schema."""

import json

import pytest

from wattsmith.cli.outputs import OUTPUTS, file_of, schema_text


def keeps(name, *texts):
    """Each of TEXTS, as NAME printed it, keeps its schema."""
    jsonschema = pytest.importorskip("jsonschema", reason="JSON OUTPUTS ARE NOT CHECKED: jsonschema is not installed")
    # Of the types as they are: another test holds the published files to them.
    schema = schema_text(name) if name in OUTPUTS else file_of(name).read_text()
    check = jsonschema.Draft202012Validator(json.loads(schema))
    assert texts, "nothing was printed"
    for text in texts:
        assert "NaN" not in text
        assert "Infinity" not in text
        check.validate(json.loads(text))
