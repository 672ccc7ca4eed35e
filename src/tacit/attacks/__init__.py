"""What an enemy sees: LinkTeller, link stealing, membership, empirical lower bounds on epsilon."""
