"""Data sheets: names as drivers write them, and figures that fit together."""

import pytest

from wattsmith.estimate.sheets import SHEETS, UnknownDevice, sheet_of


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("NVIDIA H200", "NVIDIA H200"),
        ("h200", "NVIDIA H200"),
        ("Tesla V100-PCIE-32GB", "Tesla V100 PCIe"),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM4 80GB"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 SXM4 40GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 PCIe 80GB"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100 PCIe 40GB"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("RTX6000", "Quadro RTX 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NVIDIA RTX PRO 6000 Blackwell"),
        ("AMD_Instinct_MI250", "AMD Instinct MI250"),
        ("NVIDIA A10G", "NVIDIA A10G"),
        ("NVIDIA A10", "NVIDIA A10"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("Jetson AGX Orin Developer Kit", "Jetson AGX Orin 64GB"),
    ],
)
def test_a_device_is_known_by_the_name_that_its_driver_gives(written, meant):
    assert sheet_of(written).name == meant


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.name)
def test_every_sheet_answers_to_its_own_name(sheet):
    assert sheet_of(sheet.name) is sheet


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.name)
def test_every_sheet_is_of_a_device_that_could_be(sheet):
    assert 1e12 < sheet.peak("fp32") <= sheet.peak("fp16") < 3e15
    assert 8 < sheet.peak("fp32") / sheet.bandwidth < 150  # operations per byte in balance
    assert sheet.l2_bytes < sheet.memory_bytes
    assert sheet.source


def test_a_device_without_matrix_units_does_bf16_as_fast_as_fp32():
    assert sheet_of("Tesla P4").peak("bf16") == sheet_of("Tesla P4").peak("fp32")


def test_an_unknown_device_is_told_which_ones_are_known():
    with pytest.raises(UnknownDevice, match=r"'Voodoo 2'.*NVIDIA H200.*Tesla T4"):
        sheet_of("Voodoo 2")


def test_a_device_holds_less_than_its_peak_by_its_base_clock():
    t4 = sheet_of("Tesla T4")  # 585 of 1,590 MHz: the root of 0.368 is 0.607
    assert t4.sustained_flops("fp32") == pytest.approx(0.607 * 8.1e12, rel=0.01)


def test_checking_memory_takes_a_fifth_of_gddr_and_nothing_of_hbm():
    assert sheet_of("Tesla T4").sustained_bandwidth == pytest.approx(256e9)
    assert sheet_of("H200").sustained_bandwidth == sheet_of("H200").bandwidth
