"""Files of weights: which are read, and that no code in them is run."""

import io
import pickle
import warnings
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from saywhy.encoders.weights import load_into, read_weights
from saywhy.errors import UserError

STATE = {"0.weight": torch.arange(6.0).view(2, 3), "0.bias": torch.tensor([1.0, -1.0])}


class CreatesFile:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def refusal(path) -> str:
    with pytest.raises(UserError) as error:
        read_weights(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


def equal(read, state) -> bool:
    return read.keys() == state.keys() and all(torch.equal(read[name], state[name]) for name in state)


@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
@pytest.mark.parametrize("zipped", [True, False])
def test_state_dict_is_read_also_from_a_checkpoint(tmp_path, wrap, zipped):
    content = {wrap: STATE, "epoch": 3} if wrap else STATE
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    assert equal(read_weights(tmp_path / "w.pth"), STATE)


def test_safetensors_is_recognised_by_content(tmp_path):
    save_file(STATE, tmp_path / "w.anything")
    assert equal(read_weights(tmp_path / "w.anything"), STATE)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_not_run(tmp_path, zipped):
    torch.save({"w": CreatesFile(tmp_path / "created")}, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    assert "more than tensors" in refusal(tmp_path / "w.pth")
    assert not (tmp_path / "created").exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_in_a_plain_pickle_is_not_run(tmp_path):
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(CreatesFile(tmp_path / "created")))
    refusal(tmp_path / "w.pkl")
    assert not (tmp_path / "created").exists()


def test_code_in_a_torchscript_archive_is_not_run(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
        archive.writestr("w/data.pkl", pickle.dumps(CreatesFile(tmp_path / "created"), protocol=2))
        archive.writestr("w/constants.pkl", b"")
    assert "more than tensors" in refusal(tmp_path / "w.pt")
    assert not (tmp_path / "created").exists()


def test_tensors_of_a_torchscript_archive_are_its_state_dict(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Conv2d(4, 2, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(net).save(str(tmp_path / "w.pt"))
    assert equal(read_weights(tmp_path / "w.pt"), net.state_dict())


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_truncated_file_is_refused(tmp_path, kind, share):
    path = tmp_path / "w"
    state = {"w": torch.rand(1000)}
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "zip")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    refusal(path)


def test_missing_and_empty_files_folders_and_text_are_refused(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("weights, surely\n" * 50)
    (tmp_path / "json").write_text('{"a": 1}')
    assert "no file" in refusal(tmp_path / "missing")
    assert "empty" in refusal(tmp_path / "empty")
    assert "folder" in refusal(tmp_path)
    refusal(tmp_path / "text")
    refusal(tmp_path / "json")


def test_file_without_named_tensors_is_refused(tmp_path):
    for number, content in enumerate((torch.zeros(3), {"epoch": 3}, [torch.zeros(3)])):
        buffer = io.BytesIO()
        torch.save(content, buffer)
        (tmp_path / str(number)).write_bytes(buffer.getvalue())
        assert "no named tensors" in refusal(tmp_path / str(number))


def test_tensors_that_the_network_does_not_have_are_ignored():
    net = nn.Sequential(nn.Linear(3, 2))
    load_into(net, {**STATE, "fc.weight": torch.zeros(9)}, "w.pth")
    assert equal(net.state_dict(), STATE)


def test_missing_tensors_and_wrong_shapes_are_named():
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(UserError, match=r"w\.pth .* has no 1\.weight, 1\.bias, 2\.weight and 1 more"):
        load_into(net, STATE, "w.pth")
    with pytest.raises(UserError, match=r"0\.bias is \(3,\) and should be \(2,\)"):
        load_into(nn.Sequential(nn.Linear(3, 2)), {**STATE, "0.bias": torch.zeros(3)}, "w.pth")


def test_file_that_does_not_fit_does_not_change_the_network():
    net = nn.Sequential(nn.Linear(3, 2))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(UserError):
        load_into(net, {"0.weight": STATE["0.weight"], "0.bias": torch.zeros(3)}, "w.pth")
    assert equal(net.state_dict(), before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(value):
    state = {**STATE, "0.bias": torch.tensor([1.0, value])}
    with pytest.raises(UserError, match=r"w\.pth: 0\.bias contains NaN or infinite values"):
        load_into(nn.Sequential(nn.Linear(3, 2)), state, "w.pth")


def test_integer_weights_are_refused():
    state = {**STATE, "0.bias": torch.tensor([1, 2])}
    with pytest.raises(UserError, match=r"w\.pth .*0\.bias is torch.int64"):
        load_into(nn.Sequential(nn.Linear(3, 2)), state, "w.pth")
