"""Whatever a user has becomes a step that can be traced; whatever is wrong is named, with its place."""

import json
import time
from pathlib import Path
from types import MappingProxyType

import pytest

torch = pytest.importorskip("torch", reason="MODELS ARE NOT TESTED: torch is not installed")

from wattsmith.flows.models import (  # noqa: E402
    InputsDoNotFit,
    ModelNotLoaded,
    NotTraceable,
    load_model,
    step_of,
    with_batch,
)
from wattsmith.flows.models.inputs import InputShape, parse_input  # noqa: E402
from wattsmith.record.structure import trace_step  # noqa: E402
from wattsmith.terms.errors import BadInput  # noqa: E402

HERE = Path(__file__).parent / "models_for_tests"
SMALL = str(HERE / "small.py")
NET_PARAMETERS = 8 * 16 + 16 + 16 * 4 + 4


def traced(ready):
    """The structure of one step."""
    found = trace_step(
        ready.step,
        parameters=ready.parameters,
        inputs=ready.inputs,
        resident=ready.resident,
        precision=ready.precision,
        steps=ready.steps,
    )
    return getattr(found, "structure", found)


def loaded_small(name, inputs="8", batch=6):
    return load_model(f"{SMALL}:{name}", inputs=inputs, batch=batch)


def all_on_meta(ready):
    return {one.device.type for one in (*ready.parameters, *ready.inputs, *ready.resident)} == {"meta"}


class TestPythonSources:
    @pytest.mark.parametrize("name", ["Net", "net", "build"])
    def test_a_class_an_instance_and_a_function_give_the_same_step(self, name):
        ready = step_of(loaded_small(name), optimizer=None)
        assert all_on_meta(ready)
        structure = traced(ready)
        assert structure.parameters == NET_PARAMETERS
        # Forward and backward: 2 flops for each of three products of 6×8×16 (two: inputs learn nothing) and 6×16×4.
        assert structure.operators["matmul"].flops == 2 * 6 * (2 * 8 * 16 + 3 * 16 * 4)

    def test_a_function_may_give_inputs_too(self):
        loaded = load_model(f"{SMALL}:build_with_inputs")
        assert (loaded.batch, loaded.inputs.told()) == (6, "6×8 float32")
        assert load_model(f"{SMALL}:build_with_inputs", batch=32).inputs.told() == "32×8 float32"

    def test_a_name_in_a_module_is_found(self):
        loaded = load_model("torch.nn:Flatten", inputs="3x4", batch=2)
        assert traced(step_of(loaded, mode="infer")).parameters == 0

    def test_a_file_may_import_its_neighbours(self, tmp_path):
        (tmp_path / "neighbour.py").write_text("WIDTH = 5\n")
        (tmp_path / "net.py").write_text(
            "from neighbour import WIDTH\nimport torch\ndef build():\n"
            "    from neighbour import WIDTH as again\n    return torch.nn.Linear(WIDTH, again)\n"
        )
        loaded = load_model(tmp_path / "net.py:build", inputs="5", batch=2)
        assert traced(step_of(loaded)).parameters == 30

    def test_a_module_from_python_keeps_its_weights(self):
        module = torch.nn.Linear(4, 2)
        before = module.weight.detach().clone()
        structure = traced(step_of(load_model(module, inputs=torch.randn(3, 4))))
        assert structure.parameters == 10
        assert torch.equal(module.weight, before)
        assert module.weight.grad is None

    def test_what_cannot_be_built_on_meta_is_built_on_the_cpu_with_a_note(self):
        loaded = loaded_small("ReadsValuesWhenBuilt")
        (note,) = loaded.notes
        assert "cannot be built on meta tensors (.item(), at " in note
        assert "small.py, line " in note
        assert note.endswith("built on the CPU, and moved")
        assert all_on_meta(step_of(loaded))

    def test_the_cpu_is_the_way_around_for_a_model_that_reads_values(self):
        ready = step_of(load_model(f"{SMALL}:ReadsValues", inputs="8", batch=6, device="cpu"), mode="infer")
        assert ready.device == "cpu"
        assert ready.step().shape == (6, 4)


class TestBadPython:
    def test_a_file_that_fails_to_import_shows_its_line(self, tmp_path):
        (tmp_path / "net.py").write_text("import torch\nimport no_such_package\n")
        with pytest.raises(ModelNotLoaded) as refused:
            load_model(f"{tmp_path}/net.py:Net")
        assert f"{tmp_path}/net.py, line 2: `import no_such_package`" in str(refused.value)
        assert "ModuleNotFoundError: No module named 'no_such_package'" in str(refused.value)

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            ("x = (1\n", "line 1: x = (1: SyntaxError"),
            ("import sys\nsys.exit(3)\n", "line 2: `sys.exit(3)`: SystemExit: 3"),
            ("1 / 0\n", "line 1: `1 / 0`: ZeroDivisionError: division by zero"),
        ],
    )
    def test_whatever_a_file_does_when_imported_is_told(self, tmp_path, content, told):
        (tmp_path / "net.py").write_text(content)
        with pytest.raises(ModelNotLoaded, match="fails to import") as refused:
            load_model(f"{tmp_path}/net.py:Net")
        assert told in str(refused.value)

    def test_a_name_that_is_not_there_lists_what_is(self):
        with pytest.raises(ModelNotLoaded) as refused:
            load_model(f"{SMALL}:Ned")
        assert f"has no 'Ned'; did you mean {SMALL}:Net?" in str(refused.value)
        assert "build, build_with_inputs" in str(refused.value)

    @pytest.mark.parametrize(
        ("source", "told"),
        [
            ("nowhere.py:Net", "there is no file nowhere.py"),
            (SMALL, "which model in .*small.py. Write .*small.py:NAME"),
            ("no_such_module:Net", "there is no module no_such_module"),
            ("something", "leads to no model: write file.py:NAME"),
            ("weights.safetensors", "holds weights, not the model"),
            ("nowhere.onnx", "there is no file nowhere.onnx"),
            ("nowhere.pt2", "there is no file nowhere.pt2"),
            ("nowhere/config.json", "there is no file nowhere/config.json"),
            (str(HERE), "there is no config.json in the folder"),
            (f"{SMALL}:gives_a_number", "returns a int; it should return an nn.Module"),
            (f"{SMALL}:Wide", r"cannot be called without arguments \(missing a required argument: 'width'\)"),
            (f"{SMALL}:fails_when_built", r"line \d+: `raise KeyError\(\"no such layer\"\)`: KeyError"),
            ("math:pi", "is a float; name an nn.Module"),
        ],
    )
    def test_a_source_that_leads_nowhere_is_answered(self, source, told):
        with pytest.raises(ModelNotLoaded, match=told):
            load_model(source, inputs="8")

    @pytest.mark.parametrize(
        ("name", "operator"),
        [("ReadsValues", ".item()"), ("PicksByValue", "nonzero"), ("CountsByValue", "bincount")],
    )
    def test_a_model_that_needs_values_names_the_operator_and_the_way_around(self, name, operator):
        with pytest.raises(NotTraceable) as refused:
            step_of(loaded_small(name), mode="infer")
        assert refused.value.operator == operator
        assert "small.py, line " in str(refused.value)
        assert "--with-values" in str(refused.value)

    @pytest.mark.parametrize("mode", ["train", "infer"])
    def test_questions_about_values_are_answered_as_for_ordinary_data_with_a_note_each(self, mode):
        ready = step_of(loaded_small("LooksForTheUnusual"), mode=mode)
        plain = step_of(loaded_small("Net"), mode=mode)
        notes = [note for note in ready.notes if "asks for values" in note]
        told = [note.partition("`")[2].removesuffix(", as for ordinary data") for note in notes]
        assert told == [
            "if torch.isnan(x).any() or bool(~(x < 9).all()):`: taken as no",
            "if mask.sum() != mask.numel() and torch.isinf(x).any().item():`: taken as no",
            "return super().forward(x if mask.sum() == mask.numel() else x * mask)`: taken as yes",
        ]
        assert traced(ready).operators["matmul"] == traced(plain).operators["matmul"]

    def test_tensors_made_without_a_device_are_taken_to_be_where_the_model_is(self):
        ready = step_of(loaded_small("JoinsDevices"))
        assert any("default device" in note for note in ready.notes)
        assert traced(ready).parameters == NET_PARAMETERS

    def test_a_tensor_that_stays_on_the_host_is_named(self):
        with pytest.raises(NotTraceable, match=r"`return super\(\).forward\(x \+ self.shift\)`.*register_buffer"):
            step_of(loaded_small("HoldsOnTheHost"))

    def test_a_mistake_in_the_model_is_not_blamed_on_the_inputs(self):
        with pytest.raises(ModelNotLoaded, match=r"fails in its step at .*`return self.thrid\(x\)`: AttributeError"):
            step_of(loaded_small("Misspelt"))


class TestInputs:
    @pytest.mark.parametrize(
        ("text", "shape"),
        [
            ("3x224x224", InputShape(sizes=(3, 224, 224))),
            ("128:int64", InputShape(sizes=(128,), dtype="int64")),
            ("mask=128:bool", InputShape(sizes=(128,), dtype="bool", name="mask")),
            (":long", InputShape(sizes=(), dtype="int64")),
            ("8×8:bf16", InputShape(sizes=(8, 8), dtype="bfloat16")),
        ],
    )
    def test_sizes_are_read_as_they_are_written(self, text, shape):
        assert parse_input(text) == shape

    @pytest.mark.parametrize("text", ["", "3x", "x3", "3,224", "3x224:", "-1x3", "3x0", "3 224", "3:complex", "a="])
    def test_sizes_that_make_no_sense_are_refused_with_examples(self, text):
        with pytest.raises(InputsDoNotFit, match="--input"):
            parse_input(text)

    def test_several_inputs_go_by_place_and_by_name(self):
        loaded = loaded_small("Words", inputs=["12:int64", "mask=12"], batch=5)
        assert loaded.inputs.told() == "5×12 int64, mask=5×12 float32"
        assert traced(step_of(loaded, mode="infer")).input_bytes == 5 * 12 * (8 + 4)

    def test_without_sizes_the_models_arguments_are_shown(self):
        with pytest.raises(InputsDoNotFit, match=r"what does Words take\? forward\(words, mask=None\)"):
            load_model(f"{SMALL}:Words")

    def test_a_layer_that_is_handed_the_wrong_sizes_is_named(self):
        with pytest.raises(InputsDoNotFit) as refused:
            step_of(loaded_small("Net", inputs="7"))
        assert "the model does not take 6×7 float32" in str(refused.value)
        assert "layer first (Linear) is handed 6×7 float32 and wants 8 features in the last dim" in str(refused.value)
        with pytest.raises(
            InputsDoNotFit, match=r"layer conv \(Conv2d\) is handed 6×1×9×9 float32 and wants batch × 3"
        ):
            step_of(loaded_small("Picture", inputs="1x9x9"))

    def test_too_many_inputs_are_refused(self):
        with pytest.raises(InputsDoNotFit, match="positional argument"):
            step_of(loaded_small("Net", inputs=["8", "8"]))

    def test_a_batch_has_a_sample(self):
        with pytest.raises(BadInput, match="at least 1 sample, got 0"):
            loaded_small("Net", batch=0)

    def test_a_batch_that_no_memory_holds_is_refused(self):
        with pytest.raises(InputsDoNotFit, match=r"1000000000000000000000x8 float32 is larger than any memory"):
            loaded_small("Net", inputs="8", batch=10**21)
        with pytest.raises(InputsDoNotFit, match="does not fit into this machine's memory"):
            load_model(f"{SMALL}:Net", inputs="8", batch=10**15, device="cpu")

    def test_more_passes_than_can_be_traced_are_refused(self):
        with pytest.raises(BadInput, match="1 to 10000 passes, each of which is traced; got 10001"):
            step_of(loaded_small("Net", inputs="8"), accumulation=10_001)

    def test_another_batch_is_the_same_model_with_more_samples(self):
        loaded = loaded_small("Net", batch=2)
        more = with_batch(loaded, 64)
        assert more.module is loaded.module
        assert (more.batch, more.inputs.told()) == (64, "64×8 float32")


class TestSteps:
    @pytest.mark.parametrize(
        ("name", "inputs", "told"),
        [
            ("Net", "8", "cross-entropy over the 4 scores of each sample"),
            ("Words", "12:int64", "cross-entropy over the 100 scores of each token"),
            ("GivesItsLoss", "8", "the model's own"),
            ("Pyramid", "8", "the mean of the first output, 6×1×16 float32"),
        ],
    )
    def test_the_loss_is_chosen_by_what_comes_out_and_told(self, name, inputs, told):
        ready = step_of(loaded_small(name, inputs=inputs))
        assert f"loss: {told}" in ready.notes[-1]
        assert traced(ready).parameters > 0

    def test_a_model_that_gives_no_fractions_cannot_be_trained(self):
        with pytest.raises(ModelNotLoaded, match="without any tensor of fractions"):
            step_of(loaded_small("Decides"))
        assert traced(step_of(loaded_small("Decides"), mode="infer")).flops > 0

    @pytest.mark.parametrize(("optimizer", "copies"), [(None, 0), ("sgd", 1), ("adam", 2), ("adamw", 2)])
    def test_the_optimizers_state_is_there_from_the_first_step(self, optimizer, copies):
        ready = step_of(loaded_small("Net"), optimizer=optimizer)
        assert sum(one.numel() for one in ready.resident) == copies * NET_PARAMETERS
        assert all_on_meta(ready)
        assert ("update" in traced(ready).operators) == (optimizer is not None)

    def test_gradients_that_accumulate_double_the_passes_and_not_the_update(self):
        once = traced(step_of(loaded_small("Net"), accumulation=1))
        twice = traced(step_of(loaded_small("Net"), accumulation=2))
        assert twice.operators["matmul"].calls == 2 * once.operators["matmul"].calls
        assert twice.operators["update"].calls == once.operators["update"].calls

    def test_activations_that_are_computed_again_take_time_and_spare_memory(self):
        kept = traced(step_of(loaded_small("Deep", inputs="64", batch=4096), optimizer=None))
        again = traced(step_of(loaded_small("DeepAgain", inputs="64", batch=4096), optimizer=None))
        assert again.operators["matmul"].calls == kept.operators["matmul"].calls + 16
        assert again.peak_bytes < kept.peak_bytes / 2

    def test_training_in_half_precision_is_left_to_autocast_and_inference_is_in_it_altogether(self):
        loaded = loaded_small("Net")
        trains = step_of(loaded, precision="bf16")
        infers = step_of(loaded, mode="infer", precision="bf16")
        assert (trains.precision, infers.precision) == ("bf16", "fp32")
        assert {one.dtype for one in trains.parameters} == {torch.float32}
        assert {one.dtype for one in (*infers.parameters, *infers.inputs)} == {torch.bfloat16}
        assert infers.step().dtype == torch.bfloat16
        assert traced(trains).parameters == NET_PARAMETERS  # what infers has left the other alone

    def test_channels_last_orders_weights_and_images(self):
        ready = step_of(loaded_small("Picture", inputs="3x9x9"), layout="channels-last")
        weight = next(one for one in ready.parameters if one.dim() == 4)
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert ready.inputs[0].is_contiguous(memory_format=torch.channels_last)
        assert traced(ready).conv_layers == 1

    def test_a_module_trains_and_infers_by_turns(self):
        loaded = loaded_small("Picture", inputs="3x9x9")
        trains, infers = step_of(loaded), step_of(loaded, mode="infer")
        assert (traced(trains).launches, traced(infers).launches) == (traced(trains).launches, traced(infers).launches)
        trains.step()
        assert loaded.module.training
        infers.step()
        assert not loaded.module.training

    def test_a_models_own_autocast_is_told_to_have_no_effect(self):
        if torch.cuda.is_available():
            pytest.skip("with a GPU nothing is said, because nothing is switched off")
        ready = step_of(loaded_small("OwnAutocast"))
        with pytest.warns(UserWarning, match="Disabling autocast"):
            ready.step()
        assert any("autocast has no effect in a trace" in note for note in ready.notes)

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"mode": "dream"}, "there is no mode 'dream'; there are train, infer"),
            ({"optimizer": "lion"}, "there is no optimizer 'lion'; there are sgd, adam, adamw, none"),
            ({"precision": "fp8"}, "there is no precision 'fp8'"),
            ({"layout": "diagonal"}, "there is no layout 'diagonal'"),
            ({"accumulation": 0}, "1 to 10000 passes, each of which is traced; got 0"),
        ],
    )
    def test_a_choice_that_there_is_not_lists_those_there_are(self, options, told):
        with pytest.raises(BadInput, match=told):
            step_of(loaded_small("Net"), **options)

    def test_what_has_nothing_to_learn_is_told_so(self):
        with pytest.raises(BadInput, match="no parameter that learns"):
            step_of(load_model(torch.nn.ReLU(), inputs="8"))


class TestOwnSteps:
    def test_a_step_of_ones_own_with_the_same_work_counts_the_same(self):
        def own(model, optimizer, inputs):
            labels = torch.zeros(6, dtype=torch.int64, device=inputs[0].device)
            torch.nn.functional.cross_entropy(model(*inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

        ours = traced(step_of(loaded_small("Net"), optimizer="adamw"))
        theirs = traced(step_of(loaded_small("Net"), optimizer="adamw", own=own))
        for kind in ("matmul", "softmax", "update"):
            assert theirs.operators[kind] == ours.operators[kind]

    def test_a_step_without_arguments_uses_what_it_holds(self):
        with torch.device("meta"):
            model, batch = torch.nn.Linear(8, 4), torch.empty(6, 8)
        optimizer = torch.optim.AdamW(model.parameters())  # which on meta would go tensor by tensor

        def own():
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        structure = traced(step_of(load_model(model, inputs=batch), own=own))
        assert "update" in structure.operators
        assert structure.operators["matmul"].calls == 2

    def test_a_step_that_would_change_real_weights_is_refused(self):
        model = torch.nn.Linear(8, 4)
        with pytest.raises(BadInput, match=r"write it as step\(model, optimizer, inputs\)"):
            step_of(load_model(model, inputs="8"), own=lambda: model(torch.randn(1, 8)).sum().backward())

    def test_a_step_that_reads_its_loss_is_told_where(self):
        def own(model, _optimizer, inputs):
            return model(*inputs).sum().item()

        ready = step_of(loaded_small("Net"), own=own)
        with pytest.raises(NotTraceable, match=r"\.item\(\) at .*test_models\.py, line .*Move it out of the step"):
            ready.step()

    def test_a_step_with_other_arguments_is_refused(self):
        with pytest.raises(BadInput, match=r"or nothing; yours takes \(model\)"):
            step_of(loaded_small("Net"), own=lambda model: model)


class TestExported:
    @pytest.fixture
    def path(self, tmp_path):
        from tests.flows.models_for_tests.small import Net

        rows = torch.export.Dim("rows", max=1024)
        program = torch.export.export(Net(), (torch.randn(6, 8),), dynamic_shapes=({0: rows},))
        torch.export.save(program, tmp_path / "net.pt2")
        return tmp_path / "net.pt2"

    def test_an_exported_program_is_traced_as_it_was_exported(self, path):
        loaded = load_model(path)
        assert (loaded.kind, loaded.batch) == ("exported", 6)
        infers = step_of(loaded, mode="infer")
        assert all_on_meta(infers)
        assert traced(infers).operators["matmul"].flops == 2 * 6 * (8 * 16 + 16 * 4)
        assert traced(step_of(load_model(path, batch=32))).parameters == NET_PARAMETERS

    def test_inputs_that_do_not_fit_are_told(self, path):
        with pytest.raises(InputsDoNotFit, match="the model does not take 6×7 float32"):
            step_of(load_model(path, inputs="7", batch=6), mode="infer")

    @pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 broken"])
    def test_a_corrupt_file_is_named(self, tmp_path, content):
        (tmp_path / "net.pt2").write_bytes(content)
        with pytest.raises(ModelNotLoaded, match=r"net\.pt2 cannot be read as an exported program"):
            load_model(tmp_path / "net.pt2")

    def test_a_file_that_was_cut_is_named(self, path):
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(ModelNotLoaded, match="Export it again"):
            load_model(path)


class TestHuggingFace:
    @pytest.fixture(autouse=True)
    def _transformers(self):
        pytest.importorskip("transformers", reason="CONFIGURATIONS ARE NOT TESTED: transformers is not installed")

    @pytest.fixture
    def config(self, tmp_path):
        def write(**fields):
            path = tmp_path / "config.json"
            path.write_text(json.dumps(fields))
            return path

        return write

    TINY = MappingProxyType(
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        | {"vocab_size": 50, "max_position_embeddings": 40}
    )

    @pytest.mark.parametrize(
        ("architecture", "kind", "labels"),
        [
            ("BertForMaskedLM", "bert", {"labels": (3, 16)}),
            ("BertForSequenceClassification", "bert", {"labels": (3,)}),
            ("BertForTokenClassification", "bert", {"labels": (3, 16)}),
            ("BertForQuestionAnswering", "bert", {"start_positions": (3,), "end_positions": (3,)}),
            ("BertForPreTraining", "bert", {"labels": (3, 16), "next_sentence_label": (3,)}),
            ("BertModel", "bert", {}),
            ("LlamaForCausalLM", "llama", {"labels": (3, 16)}),
        ],
    )
    def test_an_architecture_gets_labels_such_as_it_learns_from(self, config, architecture, kind, labels):
        path = config(architectures=[architecture], model_type=kind, **self.TINY)
        loaded = load_model(path, inputs="16", batch=3)
        assert type(loaded.module).__name__ == architecture
        assert loaded.inputs.told() == "input_ids=3×16 int64"
        assert {name: tuple(one.shape) for name, one in loaded.train_only.items()} == labels
        trains = step_of(loaded)
        assert all_on_meta(trains)
        assert ("loss: the model's own" in trains.notes) == bool(labels)
        assert traced(trains).flops > traced(step_of(loaded, mode="infer")).flops

    def test_texts_are_as_long_as_the_model_takes_unless_told(self, config):
        loaded = load_model(config(architectures=["BertModel"], model_type="bert", **self.TINY))
        assert loaded.inputs.told() == "input_ids=1×40 int64"
        assert loaded.notes == (
            "1 sample in a step; --batch says otherwise",
            "texts of 40 tokens; --input says otherwise",
        )

    def test_a_mask_of_the_users_is_taken_to_hide_nothing(self, config):
        path = config(architectures=["LlamaForCausalLM"], model_type="llama", **self.TINY)
        bare, masked = (load_model(path, inputs=one, batch=3) for one in (["16"], ["16", "attention_mask=16:int64"]))
        assert masked.inputs.told() == "input_ids=3×16 int64, attention_mask=3×16 int64"
        attention = [traced(step_of(one)).operators["attention"] for one in (bare, masked)]
        assert attention[0] == attention[1]

    def test_images_are_as_large_as_the_configuration_says(self, config):
        fields = {**self.TINY, "image_size": 32, "patch_size": 8, "num_labels": 10}
        path = config(architectures=["ViTForImageClassification"], model_type="vit", **fields)
        loaded = load_model(path.parent, batch=2)
        assert loaded.inputs.told() == "pixel_values=2×3×32×32 float32"
        assert traced(step_of(loaded)).conv_layers == 1

    def test_an_encoder_and_decoder_gets_both(self, config):
        fields = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 50}
        loaded = load_model(
            config(architectures=["T5ForConditionalGeneration"], model_type="t5", **fields), inputs="16", batch=3
        )
        assert set(loaded.train_only) == {"labels"}
        assert set(loaded.infer_only) == {"decoder_input_ids"}
        assert traced(step_of(loaded)).flops > traced(step_of(loaded, mode="infer")).flops > 0

    def test_without_architectures_the_bare_model_is_taken_with_a_note(self, config):
        loaded = load_model(config(model_type="bert", **self.TINY), inputs="16")
        assert type(loaded.module).__name__ == "BertModel"
        assert "names no architecture: taken as BertModel, which has no head" in loaded.notes[0]

    @pytest.mark.parametrize(
        ("fields", "told"),
        [
            ({"hidden_size": 32}, "has neither `architectures` nor `model_type`"),
            ({"architectures": [], "model_type": None}, "has neither `architectures` nor `model_type`"),
            ({"architectures": ["NoSuchModel"], "model_type": "bert"}, "has no architecture 'NoSuchModel'"),
            ({"architectures": ["X"], "model_type": "bert", "auto_map": {}}, "code of its own .* is not run"),
            ({"model_type": "no-such-type"}, "is refused by transformers"),
        ],
    )
    def test_a_configuration_that_does_not_say_what_it_is_is_refused(self, config, fields, told):
        with pytest.raises(ModelNotLoaded, match=told):
            load_model(config(**fields))

    @pytest.mark.parametrize("content", ["", "{", "[1]", "3"])
    def test_what_is_no_configuration_is_refused(self, tmp_path, content):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ModelNotLoaded, match=r"config\.json"):
            load_model(tmp_path / "config.json")


class TestSpeed:
    """Three seconds each, once torch and transformers are imported. CPU time: what else goes on is not counted."""

    BAR_S = 3.0

    @pytest.fixture(autouse=True)
    def _imported(self):
        step_of(loaded_small("Net"))

    def took_s(self, source, inputs, batch):
        before_s = time.process_time()
        structure = traced(step_of(load_model(source, inputs=inputs, batch=batch), optimizer="adamw", precision="bf16"))
        return time.process_time() - before_s, structure

    def test_resnet_50(self):
        took_s, structure = self.took_s(f"{HERE}/resnet.py:ResNet50", "3x224x224", 32)
        assert structure.parameters == 25_557_032
        assert structure.conv_layers == 53
        assert took_s < self.BAR_S

    @pytest.mark.parametrize(
        ("architecture", "kind", "tokens", "parameters"),
        [("BertForMaskedLM", "bert", 512, 109_514_298), ("GPT2LMHeadModel", "gpt2", 1024, 124_439_808)],
    )
    def test_bert_base_and_gpt_2(self, tmp_path, architecture, kind, tokens, parameters):
        transformers = pytest.importorskip("transformers", reason="BERT AND GPT-2 ARE NOT TIMED: no transformers")
        assert getattr(transformers, architecture)
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], "model_type": kind}))
        took_s, structure = self.took_s(tmp_path, str(tokens), 4)
        assert structure.parameters == parameters
        assert took_s < self.BAR_S
