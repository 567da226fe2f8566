"""Names of jobs' objects tell what they are."""

from gateway.jobs.object_names import (
    body_name,
    job_prefix,
    output_name,
    output_numbers,
    output_prefix,
    result_name,
    result_since,
)


def test_a_piece_of_output_says_its_generation_and_sequence() -> None:
    assert output_name("j", 2, 17) == "jobs/j/output/000002-00000017"
    assert output_numbers(output_name("j", 2, 17)) == (2, 17)
    assert output_numbers(output_name("j", 1_234_567, 123_456_789)) == (1_234_567, 123_456_789)
    assert output_numbers(body_name("j")) is None
    assert output_numbers(result_name("j", 1, 2)) is None


def test_a_result_says_in_which_generation_its_bytes_began() -> None:
    assert result_since(result_name("j", 3, 5)) == 3
    assert result_since("elsewhere") == 0


def test_all_that_a_job_has_lies_in_its_directory() -> None:
    for name in (body_name("j"), output_prefix("j"), output_name("j", 1, 1), result_name("j", 1, 1)):
        assert name.startswith(f"{job_prefix('j')}/")
