package forge

// Form is a forge's form for a webhook, in the words of its pages.
type Form struct {
	Where       string // page
	URL         string // name of the field; default "URL"
	ContentType string // empty if there is no choice
	Secret      string // name of the field
	Events      string // empty if all are sent
}

var forms = map[Kind]Form{
	GitHub: {"repository or organisation: Settings, Webhooks, Add webhook", "Payload URL", "application/json",
		"Secret", "Pushes, Repositories"},
	GitLab: {"project or group: Settings, Webhooks", "", "", "Secret token", "Push events, Tag push events"},
	Gitea: {"repository, organisation or site: Settings, Webhooks, Add Webhook, Gitea", "Target URL",
		"application/json (method POST)", "Secret", "Push, Delete, Repository"},
	Forgejo: {"repository, organisation or site: Settings, Webhooks, Add Webhook, Forgejo", "Target URL",
		"application/json (method POST)", "Secret", "Push, Delete, Repository"},
	BitbucketCloud: {"repository or workspace: Webhooks, Add webhook", "", "", "Secret", "Push, Updated, Deleted"},
	BitbucketDC:    {"repository or project: Settings, Webhooks", "", "", "Secret", "Push, Modified"},
	Azure: {"Project settings, Service hooks, Web Hooks", "", "", "Basic authentication password (any user name)",
		"Code pushed, Repository renamed, Repository deleted; Resource details to send: All"},
	Standard: {"the sender", "", "application/json", "Signing secret", ""},
}

// FormOf returns the form of a forge.
func FormOf(kind Kind) Form { return forms[kind] }
