// Policies that are configured, those that only say what they would do, and their last decisions.
export function startPolicies() {}
