"""ONNX files become steps that can be traced: all that they compute is counted, as it is in PyTorch."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="ONNX FILES ARE NOT TESTED: torch is not installed")
onnx = pytest.importorskip("onnx", reason="ONNX FILES ARE NOT TESTED: onnx is not installed")

from onnx import TensorProto, helper  # noqa: E402, TID253
from tests.flows.models_for_tests.resnet import ResNet50  # noqa: E402
from tests.flows.models_for_tests.small import Attends, Net, Picture, Words  # noqa: E402
from tests.flows.test_models import traced  # noqa: E402

from wattsmith.flows.models import InputsDoNotFit, ModelNotLoaded, NotTraceable, load_model, step_of  # noqa: E402
from wattsmith.flows.models.onnx_source import _Reader, _without_rule  # noqa: E402
from wattsmith.terms.errors import BadInput, ExtraNeeded  # noqa: E402


def exported(module, example, path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a newer exporter, which needs more packages
        torch.onnx.export(module.eval(), example, path, dynamo=False, input_names=["x"], **options)
    return path


def written(path, nodes, inputs, outputs, initializers=(), domain=""):
    """A file with these nodes; INPUTS and OUTPUTS by name: sizes, all float32."""
    infos = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in some.items()]
        for some in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "graph", *infos, initializer=list(initializers))
    sets = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=sets), path)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


def test_resnet_50_counts_as_it_does_in_pytorch(path):
    exported(ResNet50(), torch.randn(1, 3, 224, 224), path, dynamic_axes={"x": {0: "batch"}})
    there = traced(step_of(load_model(path, batch=8), mode="infer")).operators
    here = traced(step_of(load_model(ResNet50, inputs="3x224x224", batch=8), mode="infer")).operators
    # The exporter folds norms into convolutions; all else is the same.
    for kind in ("conv", "matmul", "pool", "elementwise"):
        assert (there[kind].calls, there[kind].flops) == (here[kind].calls, here[kind].flops)
    assert "norm" not in there


@pytest.mark.parametrize(
    ("module", "example", "sizes"),
    [
        (Attends(), torch.randn(2, 10, 32), "10x32"),
        (torch.nn.LSTM(16, 32, 2, batch_first=True, bidirectional=True), torch.randn(2, 10, 16), "10x16"),
    ],
)
def test_products_of_attention_and_recurrent_layers_are_all_there(path, module, example, sizes):
    exported(module, example, path)
    loaded = load_model(path)
    assert loaded.without_rule == {}
    there = traced(step_of(loaded, mode="infer")).operators
    here = traced(step_of(load_model(module, inputs=sizes, batch=2), mode="infer")).operators
    products = [sum(one[kind].flops for kind in ("matmul", "attention") if kind in one) for one in (there, here)]
    assert products[0] == pytest.approx(products[1], rel=0.01)


def test_open_sizes_must_be_given(path):
    exported(Words(), torch.zeros(2, 5, dtype=torch.int64), path, dynamic_axes={"x": {0: "batch", 1: "words"}})
    with pytest.raises(InputsDoNotFit, match=r"input x of the file is batch×words, .*--input x=128"):
        load_model(path)
    with pytest.raises(InputsDoNotFit, match="one sample has 1 sizes; 2 are given"):
        load_model(path, inputs="3x4")
    with pytest.raises(InputsDoNotFit, match="has no input 'y'; there are x"):
        load_model(path, inputs="y=3")
    with pytest.raises(InputsDoNotFit, match="2 inputs are given, and the file takes 1"):
        load_model(path, inputs=["3", "4"])
    loaded = load_model(path, inputs="12", batch=3)
    assert loaded.inputs.told() == "3×12 int64"
    assert traced(step_of(loaded, mode="infer")).operators["matmul"].flops == 2 * 3 * 12 * 16 * 100


def test_the_batch_of_the_file_is_taken_unless_another_is_asked_for(path):
    exported(Net(), torch.randn(6, 8), path)
    assert load_model(path).inputs.told() == "6×8 float32"
    loaded = load_model(path, batch=12)
    assert loaded.notes == ("the file has a batch of 6 written in; 12 is tried instead",)
    assert traced(step_of(loaded, mode="infer")).operators["matmul"].flops == 2 * 12 * (8 * 16 + 16 * 4)


def test_weights_may_be_in_a_file_of_their_own_which_is_not_needed(path):
    exported(Net(), torch.randn(6, 8), path)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights", size_threshold=0)
    (path.parent / "weights").unlink()
    structure = traced(step_of(load_model(path), mode="infer"))
    assert structure.parameters == 8 * 16 + 16 + 16 * 4 + 4


def test_a_file_may_be_in_half_precision_and_channels_last(path):
    exported(Picture(), torch.randn(2, 3, 9, 9), path)
    ready = step_of(load_model(path), mode="infer", precision="bf16", layout="channels-last")
    assert {one.dtype for one in ready.parameters} == {torch.bfloat16}
    assert ready.step()[0].dtype == torch.bfloat16
    assert traced(ready).conv_layers == 1


def test_an_operator_without_a_rule_is_counted_by_its_bytes_and_told(path):
    nodes = [
        helper.make_node("Hardmax", ["x"], ["y"]),
        helper.make_node("Whatever", ["y"], ["z"], domain="my.own"),
        helper.make_node("Relu", ["z"], ["out"]),
    ]
    written(path, nodes, {"x": [4, 100]}, {"out": [4, 100]}, domain="my.own")
    loaded = load_model(path)
    assert loaded.without_rule == {"Hardmax": 1, "my.own::Whatever": 1}
    assert "counted by the bytes they move alone: 1 × Hardmax, 1 × my.own::Whatever" in loaded.notes[0]
    structure = traced(step_of(loaded, mode="infer"))
    assert structure.launches == 3
    assert structure.moved_bytes == 3 * 2 * 4 * 400


def test_a_branch_is_taken_by_what_is_known(path):
    def branch(name, operator):
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8])
        return helper.make_graph([helper.make_node(operator, ["x"], [name])], name, [], [out])

    rows = helper.make_tensor("rows", TensorProto.INT64, [], [4])
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"], end=1),
        helper.make_node("Squeeze", ["sizes"], ["size"]),
        helper.make_node("Equal", ["size", "rows"], ["same"]),
        helper.make_node("If", ["same"], ["out"], then_branch=branch("a", "Relu"), else_branch=branch("b", "Exp")),
    ]
    written(path, nodes, {"x": ["batch", 8]}, {"out": [4, 8]}, [rows])
    assert traced(step_of(load_model(path, batch=4), mode="infer")).launches == 1


def test_what_depends_on_values_is_named(path):
    nodes = [helper.make_node("NonZero", ["x"], ["y"], name="where"), helper.make_node("Cast", ["y"], ["out"], to=1)]
    written(path, nodes, {"x": [4, 8]}, {"out": ["n", "m"]})
    with pytest.raises(NotTraceable, match=r"node where \(NonZero\) needs the values of a tensor") as refused:
        step_of(load_model(path), mode="infer")
    assert refused.value.operator == "NonZero"


def test_sizes_that_do_not_fit_name_the_node(path):
    exported(Net(), torch.randn(6, 8), path)
    with pytest.raises(InputsDoNotFit, match=r"\(Gemm\) is handed 6×7 float32, .*which does not fit"):
        step_of(load_model(path, inputs="7"), mode="infer")


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02", b"not an ONNX file, but some text", b"\xff" * 100])
def test_a_corrupt_file_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ModelNotLoaded, match=r"net\.onnx .*damaged or something else\. Export it again"):
        load_model(path)


def test_a_file_that_was_cut_is_refused(path):
    exported(Picture(), torch.randn(2, 3, 9, 9), path)
    whole = path.read_bytes()
    for share in (0.2, 0.5, 0.9):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ModelNotLoaded, match="damaged"):
            load_model(path)


def test_a_node_that_reads_what_nothing_gives_is_named(path):
    written(path, [helper.make_node("Relu", ["lost"], ["out"], name="last")], {"x": [4]}, {"out": [4]})
    with pytest.raises(ModelNotLoaded, match=r"node last \(Relu\) wants 'lost', which no node gives"):
        step_of(load_model(path), mode="infer")


def test_a_file_cannot_be_trained_nor_run(path):
    exported(Net(), torch.randn(6, 8), path)
    with pytest.raises(BadInput, match="holds the forward pass alone"):
        step_of(load_model(path))
    with pytest.raises(BadInput, match="on meta tensors alone"):
        load_model(path, device="cpu")


def test_without_the_package_the_extra_is_named(path, monkeypatch):
    import sys

    path.touch()
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ExtraNeeded, match=r"pip install 'wattsmith\[onnx\]'"):
        load_model(path)


# Of ONNX's own cases: what no exporter of networks writes, and numbers that PyTorch does not compute with on the CPU.
UNUSUAL = ("empty_set", "negative_indices", "sequence", "_opt", "not_larger", "not_small")


@pytest.mark.filterwarnings("ignore")
def test_every_rule_gives_the_shapes_that_onnx_says(tmp_path):
    import numpy
    from onnx.backend.test.case.node import collect_testcases

    right, wrong, refused = 0, [], 0
    for case in collect_testcases(None):
        model = case.model
        if model is None or model.functions or any(word in case.name for word in UNUSUAL):
            continue
        if list(_without_rule(model.graph)):
            continue
        versions = {one.domain: one.version for one in model.opset_import}
        module = _Reader(tmp_path / "case.onnx", versions).module(model.graph, {})
        for given, expected in case.data_sets:
            if any(str(getattr(one, "dtype", "")) in ("uint16", "uint32", "uint64") for one in given):
                continue
            try:
                with torch.no_grad():
                    found = module(*(torch.from_numpy(numpy.array(one)) for one in given))
            except TypeError:
                continue  # texts, and numbers of types that PyTorch has not
            except NotTraceable:
                refused += 1
                continue
            pairs = [pair for pair in zip(found, expected, strict=True) if hasattr(pair[1], "shape")]
            if all(tuple(one.shape) == wanted.shape for one, wanted in pairs):
                right += 1
            else:
                wrong.append(case.name)
    assert wrong == []
    assert right > 1000
    assert refused < 40
