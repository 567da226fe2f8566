"""KEDA's external scaler (extra ``keda``)."""
