"""Jobs as they are submitted: what is read, and what is wrong in a file, all of it, by line and reason."""

import pytest

from wattsmith.flows.estimating import PRECISIONS
from wattsmith.flows.models.steps import OPTIMIZERS
from wattsmith.schedule.job_files import WORDS
from wattsmith.schedule.job_submission import read_job, submitted_job
from wattsmith.terms.errors import BadInput

pytest.importorskip("yaml", reason="JOB FILES ARE NOT TESTED: PyYAML is not installed")

JOB = """\
name: digits
command: [python, train.py, --epochs, 3]
files: [train.py, parts/net.py]
environment: {OMP_NUM_THREADS: 2, EMPTY: }
data: digits
model: parts/net.py:Net
input: [1x8x8]
batch: 64
samples: 1797
epochs: 3
gpus: {most: 2}
deadline: 1h
retries: 2
timeout: 20min
power_budget: 900W
cpus: 1.5
"""


def test_a_job_says_what_is_to_be_run_with_what_and_within_which_limits(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    job = read_job(tmp_path / "job.yaml", now_s=0.0)
    assert job.command == ("python", "train.py", "--epochs", "3")
    assert job.files == ("train.py", "parts/net.py")
    assert job.environment == {"OMP_NUM_THREADS": "2", "EMPTY": ""}
    assert (job.name, job.data, job.retries, job.timeout_s, job.cpus) == ("digits", "digits", 2, 1200.0, 1.5)
    assert job.power_budget_w == 900.0
    assert (job.work.wanted.least, job.work.wanted.most, job.work.deadline_s) == (1, 2, 3600.0)
    assert job.work.model["batch"] == 64


def test_a_text_a_file_and_an_object_are_the_same_job(tmp_path):
    import yaml

    (tmp_path / "job.yaml").write_text(JOB)
    plain = yaml.safe_load(JOB)
    jobs = [read_job(tmp_path / "job.yaml", 0.0), submitted_job(JOB, 0.0), submitted_job(plain, 0.0)]
    for name in ("command", "files", "environment", "data", "retries", "timeout_s", "power_budget_w", "cpus"):
        assert len({str(getattr(job, name)) for job in jobs}) == 1, name
    assert len({str(job.work.model) for job in jobs}) == 1


def wrong(text):
    with pytest.raises(BadInput) as told:
        submitted_job(text, 0.0, "job.yaml")
    return told.value


@pytest.mark.parametrize(
    ("old", "new", "line", "where", "reason"),
    [
        ("name: digits", "nam: digits", 1, "nam", "did you mean name"),
        ("name: digits", "name: two words", 1, "name", "up to 100 letters"),
        ("name: digits", "name: ../up", 1, "name", "up to 100 letters"),
        ("name: digits", "name:", 1, "name", "must be a text; got nothing"),
        ("[python, train.py, --epochs, 3]", "python train.py", 2, "command", "no shell will read 'python train.py'"),
        ("[python, train.py, --epochs, 3]", "[]", 2, "command", "must name a program"),
        ("[python, train.py, --epochs, 3]", "[python, [a]]", 2, "command[2]", "must be a word"),
        ("parts/net.py]", "/etc/passwd]", 3, "files[2]", "in the folder of the job file"),
        ("parts/net.py]", "a/../../b]", 3, "files[2]", "in the folder of the job file"),
        ("parts/net.py]", "train.py]", 3, "files[2]", "named twice"),
        ("parts/net.py]", "'a\\b']", 3, "files[2]", "cannot be the name of a file everywhere"),
        ("[train.py, parts/net.py]", "train.py", 3, "files", "must be a list"),
        ("{OMP_NUM_THREADS: 2, EMPTY: }", "[A]", 4, "environment", "must hold names with texts"),
        ("EMPTY: ", "1ST: a", 4, "environment.1ST", "is no name of a variable"),
        ("EMPTY: ", "CUDA_VISIBLE_DEVICES: 0", 4, "environment.CUDA_VISIBLE_DEVICES", "set by the service"),
        ("EMPTY: ", "WATTSMITH_DATA: /", 4, "environment.WATTSMITH_DATA", "set by the service"),
        ("EMPTY: ", "A: [b]", 4, "environment.A", "must be a word"),
        ("data: digits", "data: ../secrets", 5, "data", "name of a folder below the service's data"),
        ("batch: 64", "batch: many", 8, "batch", "must be a number, got 'many'"),
        ("batch: 64", "precision: fp99", 8, "precision", "must be one of fp32, tf32, bf16, fp16; got 'fp99'"),
        ("batch: 64", "mode: dance", 8, "mode", "must be one of train, infer"),
        ("batch: 64", "optimizer: adamx", 8, "optimizer", "must be one of sgd, adam, adamw, none"),
        ("batch: 64", "layout: [x]", 8, "layout", "must be one of contiguous, channels-last; got a list"),
        ("batch: 64", "memory: 8", 8, "memory", "has no unit"),
        ("batch: 64", "doubt: 500%", 8, "doubt", "must be a share"),
        ("gpus: {most: 2}", "gpus: {least: 3, most: 2}", 11, "gpus", "at least 3 and at most 2"),
        ("gpus: {most: 2}", "gpus: {moist: 2}", 11, "gpus.moist", "did you mean most"),
        ("deadline: 1h", "deadline: soon", 12, "deadline", "is no time"),
        ("retries: 2", "retries: -1", 13, "retries", "whole number from 0"),
        ("retries: 2", "retries: 1000", 13, "retries", "at most 100"),
        ("timeout: 20min", "timeout: 20", 14, "timeout", "has no unit"),
        ("power_budget: 900W", "power_budget: 0W", 15, "power_budget", "more than nothing"),
        ("power_budget: 900W", "power_budget: 900J", 15, "power_budget", "J is a unit of energy"),
        ("cpus: 1.5", "cpus: 0", 16, "cpus", "must be a positive number"),
        ("cpus: 1.5", "comand: [a]", 16, "comand", "did you mean command"),
        ("cpus: 1.5", "data_work: {made: 1s}", 16, "data_work", "is not known here"),
        ("epochs: 3\n", "epochs: 3\nepochs: 4\n", 11, "epochs", "said twice"),
    ],
)
def test_what_is_wrong_is_named_with_line_field_and_reason(old, new, line, where, reason):
    assert old in JOB
    told = wrong(JOB.replace(old, new, 1))
    assert (where, line) in {(at, number) for at, number, _ in told.problems}, told
    assert f"job.yaml, line {line}, {where}: " in str(told)
    assert reason in str(told)


def test_all_that_is_wrong_is_told_at_once_by_line():
    text = JOB
    for old, new in (("[python, ", "5 # "), ("batch: 64", "batch: 0"), ("1h", "x"), ("900W", "900"), ("digits", "a b")):
        text = text.replace(old, new, 1)
    told = wrong(text)
    assert [line for _, line, _ in told.problems] == [1, 2, 8, 12, 15]
    assert len(str(told).splitlines()) == 5


def test_step_and_power_are_wrong_at_once():
    told = wrong("name: a\ncommand: [a]\nsteps: 1\nstep: 100\npower: much\n")
    assert [line for _, line, _ in told.problems] == [4, 5]


def test_figures_are_wrong_though_a_curve_is_taken_instead():
    told = wrong("name: a\ncommand: [a]\nsteps: 1\nstep: -5ms\npower: 3kg\ncurve: [{step: 1s, power: 5W}]\n")
    assert [line for _, line, _ in told.problems] == [4, 5]


def test_all_that_is_wrong_with_the_number_of_devices_is_told_at_once():
    told = wrong(JOB.replace("{most: 2}", "{most: 0, least: x, fewest: perhaps, moist: 1}"))
    assert {where for where, _, _ in told.problems} == {"gpus.most", "gpus.least", "gpus.fewest", "gpus.moist"}


def test_a_job_of_which_no_name_is_known_is_told_each_of_them_and_what_is_missing():
    told = wrong("nom: a\ncommande: [a]\n")
    assert "got names with values" not in str(told)
    assert all(part in str(told) for part in ("'nom' is not known", "a job needs a name", "what is to be run"))


def test_the_words_of_a_model_are_those_that_a_step_is_traced_with():
    assert WORDS["precision"] == PRECISIONS
    assert set(WORDS["optimizer"]) == {*OPTIMIZERS, "none"}


def test_a_time_that_no_calendar_has_is_refused():
    assert "'9999999d' lies after the year 9999" in str(wrong(JOB.replace("1h", "9999999d", 1)))


def test_several_points_of_a_curve_are_wrong_at_once():
    told = wrong(
        "name: a\ncommand: [a]\nsteps: 1\ncurve:\n  - {step: 1, power: 5W}\n  - {power: 5W}\n  - {stepp: 1s}\n"
    )
    assert [line for _, line, _ in told.problems] == [5, 6, 7]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "job.yaml is empty"),
        ("name: [", "line 1: this is no YAML"),
        ("- a", "line 1, the file: a job holds names with values"),
        ("jobs: []", "one job at a time"),
        ("name: a", "what is to be run"),
        ("x" * 300_000, "longer than 256 KiB"),
    ],
)
def test_what_is_no_job_says_so(text, says):
    assert says in str(wrong(text))


def test_an_object_has_fields_and_no_lines():
    told = wrong({"name": 5, "command": "ls -l", "steps": -1, "step": "1s", "power": "5W", "retries": 1.5, "k": None})
    assert {(where, line) for where, line, _ in told.problems} == {
        *(("command", None), ("steps", None), ("retries", None), ("k", None)),
    }
    assert "job.yaml, steps: must be a positive number" in str(told)


def test_an_object_that_holds_itself_is_refused():
    circle = {"name": "a"}
    circle["environment"] = circle
    assert "more in it than can be meant" in str(wrong(circle))
