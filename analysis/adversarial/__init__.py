"""Whether attention is an explanation: the checks of Jain & Wallace 2019 and of Wiegreffe & Pinter 2019."""
