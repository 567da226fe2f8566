"""What may be uploaded, and where its bytes are."""

from gateway.domain.files import UPLOADED, FilePurpose, NewFile


def test_what_the_gateway_makes_is_not_uploaded() -> None:
    assert FilePurpose.BATCH in UPLOADED
    assert FilePurpose.BATCH_OUTPUT not in UPLOADED


def test_objects_are_named_by_the_files_id_alone() -> None:
    file = NewFile("file-1", "../t", "k", "../../etc/passwd", FilePurpose.BATCH, 0.0)
    assert file.object_name == "files/file-1"
