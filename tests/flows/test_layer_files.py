"""A program tells its layers by itself: one line, one step watched, the same results."""

import json
import subprocess
import sys

import pytest

from wattsmith.flows.layer_files import VARIABLE, read_layers, tell_layers
from wattsmith.flows.matching import benchmarks_in, match
from wattsmith.record.layer_hook import LayerHook
from wattsmith.terms.errors import BadInput

torch = pytest.importorskip("torch")
nn = torch.nn


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.gru, self.last = nn.Embedding(50, 8), nn.GRU(8, 16, 2, batch_first=True), nn.Linear(16, 50)

    def forward(self, words):
        return self.last(self.gru(self.table(words))[0][:, -1])


def pictures():
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 4 * 4, 5))
    return layers, torch.randn(2, 3, 8, 8), 5


def sentences():
    return Words(), torch.randint(0, 50, (2, 6)), 50


def train(make, steps, hook=lambda: None):
    """The weights' sum after so many STEPS; HOOK is called before the first."""
    torch.manual_seed(0)
    network, batch, classes = make()
    truth, loss = torch.randint(0, classes, (2,)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, foreach=True)
    hook()
    for _ in range(steps):
        optimizer.zero_grad()
        loss(network(batch), truth).backward()
        optimizer.step()
    return sum(one.sum().item() for one in network.parameters())


@pytest.mark.parametrize(("make", "kind"), [(pictures, "convolutional"), (sentences, "recurrent")])
def test_one_step_is_watched_and_its_kind_follows(make, kind):
    told = []
    plain = train(make, 5)
    watched = train(make, 5, lambda: LayerHook(told.append))
    assert watched == plain
    (structure,) = told
    assert structure.parameters == sum(one.numel() for one in make()[0].parameters())
    assert match(structure, benchmarks_in("h200")).family.family == kind


def test_a_whole_step_is_told_forward_backward_and_update():
    told = []
    train(pictures, 5, lambda: LayerHook(told.append))
    assert told[0].conv_layers == 2
    assert told[0].operators["conv"].calls == 4  # two there, two back
    assert told[0].operators["update"].calls > 0


def test_inference_is_told_too():
    told = []
    hook = LayerHook(told.append)
    network, batch, _ = pictures()
    with torch.no_grad():
        for _ in range(4):
            network(batch)
    assert told[0].operators["conv"].calls == 2
    hook.close()
    assert len(told) == 1


def test_a_program_that_ends_early_tells_what_it_was_at():
    told = []
    hook = LayerHook(told.append)
    network, batch, _ = pictures()
    for _ in range(3):
        network(batch)
    assert told == []
    hook.close()
    assert told[0].operators["conv"].calls == 2


def test_a_network_inside_another_mode_is_left_alone():
    told = []
    hook = LayerHook(told.append)
    with torch.device("cpu"):
        network, batch, _ = pictures()
        for _ in range(25):
            network(batch)
    hook.close()
    assert told == []


def test_where_nobody_asks_nothing_is_watched(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert tell_layers() is False


PROGRAM = """
import torch, wattsmith
assert wattsmith.tell_layers()
network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
for _ in range(5):
    network(torch.randn(4, 8)).sum().backward()
"""


def test_a_program_writes_its_layers_where_the_environment_says(tmp_path, monkeypatch):
    path = tmp_path / "layers.json"
    monkeypatch.setenv(VARIABLE, str(path))
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
    assert read_layers(path).dense_layers == 2
    assert json.loads(path.read_text())["recurrent_layers"] == 0


@pytest.mark.parametrize("content", ["", "[]", '{"parameters": "many"}', "\x00"])
def test_a_file_that_holds_no_layers_is_named(tmp_path, content):
    path = tmp_path / "layers.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=r"(?s)layers.json holds no layers: .*tell_layers"):
        read_layers(path)
