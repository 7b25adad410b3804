"""The files of deploy/, as their readers see them."""

import json
import re
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "wattsmith.json").read_text())
METRIC = re.compile(r"\bwattsmith_\w+")


def read_yaml(name):
    import yaml

    return yaml.safe_load((DEPLOY / "prometheus" / name).read_text())


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def rules():
    return [rule for group in read_yaml("wattsmith.rules.yml")["groups"] for rule in group["rules"]]


def metrics_used():
    """Every metric that a panel, a variable or a rule of ours asks for."""
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    asked += [variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable]
    asked += [rule["expr"] for rule in rules()]
    return {name for expression in asked for name in METRIC.findall(expression)}
