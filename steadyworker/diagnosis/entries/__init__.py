"""The entries of the catalogue, one file for each broker or kind of client; `steadyworker.diagnosis.catalogue` reads them."""
