"""The paper's claims, answered from the JSON that other commands of the report have written."""
