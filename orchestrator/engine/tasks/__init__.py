"""Runs that go on by themselves: started, waited for, answered, cancelled, kept."""
