"""The JSON Schema of a work schedule, from its facts: `python -m wattsmith.schedule.jsonschema > FILE` writes it."""

import json
import sys
from pathlib import Path
from typing import Any

from wattsmith.terms.schema import schema_of
from wattsmith.terms.work_schedule import VERSION, WorkSchedule

PUBLISHED = Path(__file__).with_name(f"work_schedule.v{VERSION}.schema.json")


def schema() -> dict[str, Any]:
    """The schema that every work schedule of this version keeps."""
    made = schema_of(WorkSchedule, name=f"work-schedule:{VERSION}", title="WorkSchedule", told=False)
    made["$defs"]["WorkSchedule"]["properties"]["version"] = {"const": VERSION}
    return made


def schema_text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
