"""How fast rows of logs and databases become batches, beside what one writes by hand and Hugging Face datasets."""
