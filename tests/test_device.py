"""Where torch computes: the choice of a device, a GPU for each job, and products as exact as they say."""

import subprocess
import sys

import pytest
import torch

from project import ROOT
from qkgeom import device
from qkgeom.device import (
    bfloat16_products,
    choose_device,
    full_precision,
    gpu_slots,
    has_matrix_unit,
    take_free_gpus,
    visible_gpus,
)
from qkgeom.errors import UsageError


@pytest.fixture
def machine(monkeypatch):
    """Pretends that torch sees so many GPUs, and MPS or not."""

    def pretend(gpus=0, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Pretends that CUDA sees these GPUs; locks lie in a folder of their own and are gone afterwards."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(device, "_held", [])
    yield lambda names: monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    for file in device._held:
        file.close()


@pytest.mark.parametrize(
    ("name", "here", "chosen"),
    [
        ("auto", {}, "cpu"),
        ("auto", {"mps": True}, "mps"),
        ("auto", {"gpus": 2, "mps": True}, "cuda"),
        ("cpu", {"gpus": 1}, "cpu"),
        ("cuda", {"gpus": 1}, "cuda"),
        ("cuda:1", {"gpus": 2}, "cuda:1"),
        ("mps", {"mps": True}, "mps"),
    ],
)
def test_the_device(machine, name, here, chosen):
    machine(**here)
    assert str(choose_device(name)) == chosen


@pytest.mark.faults
@pytest.mark.parametrize("name", ["cuda", "cuda:2", "cuda:", "cuda:x", "mps", "tpu", ""])
def test_a_device_that_is_not_here_is_refused(machine, name):
    machine(gpus=0 if name == "cuda" else 2)
    with pytest.raises(UsageError, match="there is no such device") as error:
        choose_device(name)
    assert ("here are cpu" in str(error.value)) and (("cuda:1" in str(error.value)) == (name != "cuda"))


@pytest.mark.parametrize(
    ("visible", "found"),
    [("", []), ("0", ["0"]), ("0, 2", ["0", "2"]), ("1,-1,0", ["1"]), ("GPU-8a,GPU-2b", ["GPU-8a", "GPU-2b"])],
)
def test_visible_gpus_are_those_of_the_environment(gpus, visible, found):
    gpus(visible)
    assert visible_gpus() == found


@pytest.mark.parametrize(
    ("name", "visible", "slots"),
    [
        ("auto", "", 0),
        ("auto", "0,1", 2),
        ("cuda", "0,1", 2),
        ("cuda", "", 1),
        ("cuda:1", "0,1", 1),
        ("cpu", "0,1", 0),
        ("mps", "", 0),
    ],
)
def test_jobs_at_a_time_are_one_per_gpu(gpus, name, visible, slots):
    gpus(visible)
    assert gpu_slots(name) == slots


def test_each_process_takes_a_gpu_of_its_own(gpus, monkeypatch, caplog):
    taken = []
    for _ in range(3):  # locks of one process exclude each other, too, since each is of another open file
        gpus("GPU-a,GPU-b")
        take_free_gpus("auto")
        taken += visible_gpus()
    assert taken[:2] == ["GPU-a", "GPU-b"] and taken[2] in ("GPU-a", "GPU-b")
    assert "2 GPUs are taken" in caplog.text
    device._held.pop(0).close()  # the first process ends
    gpus("GPU-a,GPU-b")
    take_free_gpus("cuda")
    assert visible_gpus() == ["GPU-a"]


def test_a_process_takes_several_gpus(gpus, caplog):
    gpus("a,b,c,d,e")
    take_free_gpus("cuda")
    gpus("a,b,c,d,e")
    take_free_gpus("cuda", 2)
    assert visible_gpus() == ["b", "c"] and len(device._held) == 3
    gpus("a,b,c,d,e")
    take_free_gpus("auto", 3)
    assert visible_gpus()[:2] == ["d", "e"] and visible_gpus()[2] in ("a", "b", "c")
    assert "3 GPUs are taken by other jobs of ours; sharing GPU" in caplog.text


def test_all_that_a_scheduler_gave_are_taken_and_fewer_are_an_error(gpus):
    gpus("2,3")
    take_free_gpus("cuda", 2)
    assert visible_gpus() == ["2", "3"] and not device._held
    with pytest.raises(UsageError, match=r"more GPUs than there are\n +found: +2, 3\n +expected: +4"):
        take_free_gpus("cuda", 4)


@pytest.mark.parametrize(("name", "visible"), [("auto", "3"), ("cuda:1", "0,1"), ("cpu", "0,1"), ("auto", "")])
def test_a_choice_that_is_made_already_stays(gpus, name, visible):
    gpus(visible)
    take_free_gpus(name)
    assert visible_gpus() == [each for each in visible.split(",") if each] and not device._held


def test_products_are_float32_whatever_is_set_outside(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    matmul = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
            assert [each.fp32_precision for each in matmul] == ["ieee", "ieee"]
        assert torch.get_float32_matmul_precision() == "medium"
        assert [each.fp32_precision for each in matmul] == ["tf32", "bf16"]
        torch.set_float32_matmul_precision("highest")
        matmul[0].fp32_precision = "tf32"  # the newer way to say it
        with full_precision():
            assert [each.fp32_precision for each in matmul] == ["ieee", "ieee"]
        assert matmul[0].fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_torch_that_sets_no_precision_per_backend_will_do(monkeypatch):
    """bench/gpu.sh runs with the torch of the machine."""
    before = torch.get_float32_matmul_precision()
    monkeypatch.setattr(torch.backends.cuda, "matmul", object())
    monkeypatch.setattr(torch.backends.mkldnn, "matmul", None)
    try:
        torch.set_float32_matmul_precision("high")
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_matrix_unit_is_that_of_the_cpu_and_switched_on_for_a_while(monkeypatch):
    capabilities = {"amx_bf16": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert has_matrix_unit(torch.device("cpu")) and not has_matrix_unit(torch.device("cuda"))
    capabilities.clear()  # of an ARM processor
    assert not has_matrix_unit(torch.device("cpu"))
    backend = torch.backends.mkldnn.matmul
    before = backend.fp32_precision
    with pytest.raises(ZeroDivisionError), full_precision(), bfloat16_products():
        assert backend.fp32_precision == "bf16"
        raise ZeroDivisionError
    assert backend.fp32_precision == before


def test_counting_gpus_imports_no_torch():
    code = "import sys; from qkgeom.device import gpu_slots; gpu_slots('auto'); print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "workflow")}, check=True
    )
    assert result.stdout == "False\n"
