"""A mixture-of-experts model of transformers whose experts do not fit: strata against what people use today."""
