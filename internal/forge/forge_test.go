package forge_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"lockstep/internal/forge"
)

const (
	one  = "1111111111111111111111111111111111111111"
	two  = "2222222222222222222222222222222222222222"
	none = "0000000000000000000000000000000000000000"
)

// payload is a small delivery with the expected events, or the reason to ignore it in brackets.
type payload struct {
	kind        forge.Kind
	event, body string
	want        string
}

const (
	hubRepo  = `"repository":{"full_name":"acme/widgets","clone_url":"https://git.example.com/acme/widgets.git","default_branch":"trunk"}`
	labRepo  = `"project":{"path_with_namespace":"acme/deep/widgets","git_http_url":"https://git.example.com/acme/deep/widgets.git"}`
	dcRepo   = `"repository":{"slug":"widgets","project":{"key":"ACME"},"links":{"self":[{"href":"https://git.example.com/bitbucket/projects/ACME/repos/widgets/browse"}]}}`
	widgets  = "acme/widgets https://git.example.com/acme/widgets.git"
	deep     = "acme/deep/widgets https://git.example.com/acme/deep/widgets.git"
	cloud    = "acme/widgets https://bitbucket.org/acme/widgets.git"
	dc       = "ACME/widgets https://git.example.com/bitbucket/scm/acme/widgets.git"
	azure    = `"repository":{"remoteUrl":"https://acme@dev.azure.com/acme/Shop/_git/widgets","defaultBranch":"refs/heads/trunk"}`
	devops   = "acme/Shop/_git/widgets https://dev.azure.com/acme/Shop/_git/widgets"
	standard = `"repo":"acme/widgets","url":"https://git.example.com/acme/widgets.git"`
)

var payloads = map[string]payload{
	"Azure push":                                     {forge.Azure, "", `{"id":"delivery-1","eventType":"git.push","resource":{"refUpdates":[{"name":"refs/heads/trunk","oldObjectId":"` + one + `","newObjectId":"` + two + `"}],` + azure + `}}`, "pushed " + devops + " refs/heads/trunk " + one + " " + two},
	"Azure push of two refs":                         {forge.Azure, "", `{"id":"delivery-1","eventType":"git.push","resource":{"refUpdates":[{"name":"refs/heads/new","oldObjectId":"` + none + `","newObjectId":"` + two + `"},{"name":"refs/tags/v1","oldObjectId":"` + none + `","newObjectId":"` + one + `"}],` + azure + `}}`, "pushed " + devops + " refs/heads/new - " + two + "\npushed " + devops + " refs/tags/v1 - -"},
	"Azure branch deleted":                           {forge.Azure, "", `{"id":"delivery-1","eventType":"git.push","resource":{"refUpdates":[{"name":"refs/heads/x","oldObjectId":"` + one + `","newObjectId":"` + none + `"}],` + azure + `}}`, "ref_deleted " + devops + " refs/heads/x " + one + " -"},
	"Azure tag deleted":                              {forge.Azure, "", `{"id":"delivery-1","eventType":"git.push","resource":{"refUpdates":[{"name":"refs/tags/v1","oldObjectId":"` + one + `","newObjectId":"` + none + `"}],` + azure + `}}`, "ref_deleted " + devops + " refs/tags/v1 - -"},
	"Azure pull request ref":                         {forge.Azure, "", `{"id":"delivery-1","eventType":"git.push","resource":{"refUpdates":[{"name":"refs/pull/1/merge","newObjectId":"` + one + `"}],` + azure + `}}`, "[no branch or tag that can be watched has changed]"},
	"Azure push, minimal details":                    {forge.Azure, "", `{"id":"delivery-1","eventType":"git.push","resource":{"pushId":14,` + azure + `}}`, "pushed " + devops + " - - -"},
	"Azure push, no details":                         {forge.Azure, "", `{"id":"delivery-1","eventType":"git.push","resource":null}`, "[the delivery does not contain the repository's URL]"},
	"Azure project with a space":                     {forge.Azure, "", `{"id":"delivery-1","eventType":"git.push","resource":{"refUpdates":[{"name":"refs/heads/main","newObjectId":"` + two + `"}],"repository":{"remoteUrl":"https://dev.azure.com/acme/The%20Shop/_git/widgets"}}}`, "pushed  https://dev.azure.com/acme/The%20Shop/_git/widgets refs/heads/main - " + two},
	"Azure renamed":                                  {forge.Azure, "", `{"id":"delivery-1","eventType":"git.repo.renamed","resource":{"oldName":"gadgets","newName":"widgets",` + azure + `}}`, "moved " + devops + " from acme/Shop/_git/gadgets https://dev.azure.com/acme/Shop/_git/gadgets"},
	"Azure renamed in a project with a space":        {forge.Azure, "", `{"id":"delivery-1","eventType":"git.repo.renamed","resource":{"oldName":"gadgets","newName":"widgets","repository":{"remoteUrl":"https://dev.azure.com/acme/The%20Shop/_git/widgets"}}}`, "moved  https://dev.azure.com/acme/The%20Shop/_git/widgets from  https://dev.azure.com/acme/The%20Shop/_git/gadgets"},
	"Azure renamed again since":                      {forge.Azure, "", `{"id":"delivery-1","eventType":"git.repo.renamed","resource":{"oldName":"gadgets","newName":"gizmos",` + azure + `}}`, "[the repository's URL does not end in its name]"},
	"Azure repository deleted":                       {forge.Azure, "", `{"id":"delivery-1","eventType":"git.repo.deleted","resource":{"project":{"name":"Shop","url":"https://dev.azure.com/acme/_apis/projects/6ce954b1"},"repositoryName":"widgets","isHardDelete":false}}`, "removed " + devops + " - - -"},
	"Azure repository of the project's name deleted": {forge.Azure, "", `{"id":"delivery-1","eventType":"git.repo.deleted","resource":{"project":{"name":"shop","url":"https://git.example.com/tfs/main/_apis/projects/6ce954b1"},"repositoryName":"shop"}}`, "removed tfs/main/shop/_git/shop https://git.example.com/tfs/main/shop/_git/shop - - -\nremoved tfs/main/_git/shop https://git.example.com/tfs/main/_git/shop - - -"},
	"Azure deleted somewhere":                        {forge.Azure, "", `{"id":"delivery-1","eventType":"git.repo.deleted","resource":{"project":{"name":"Shop"},"repositoryName":"widgets"}}`, "[the delivery does not contain the repository's URL]"},
	"Azure repository created":                       {forge.Azure, "", `{"id":"delivery-1","eventType":"git.repo.created","resource":{` + azure + `}}`, "[nothing that a clone depends on has changed]"},
	"Azure build":                                    {forge.Azure, "", `{"id":"delivery-1","eventType":"build.complete","resource":[]}`, "[event type not of interest]"},

	"GitHub ping":                       {forge.GitHub, "ping", `{"zen":"Keep it logically awesome."}`, "ping"},
	"GitHub push":                       {forge.GitHub, "push", `{"ref":"refs/heads/main","before":"` + one + `","after":"` + two + `",` + hubRepo + `}`, "pushed " + widgets + " refs/heads/main " + one + " " + two},
	"GitHub push, two URLs":             {forge.GitHub, "push", `{"ref":"refs/heads/main","repository":{"full_name":"acme/widgets","clone_url":"https://git.example.com/acme/widgets.git","ssh_url":"git@ssh.example.com:acme/widgets.git"}}`, "pushed " + widgets + ",ssh://git@ssh.example.com:/acme/widgets.git refs/heads/main - -"},
	"GitHub push, SSH alone":            {forge.GitHub, "push", `{"ref":"refs/heads/main","repository":{"full_name":"acme/widgets","ssh_url":"ssh://git@ssh.example.com:2222/acme/widgets.git"}}`, "pushed acme/widgets ssh://git@ssh.example.com:2222/acme/widgets.git refs/heads/main - -"},
	"GitHub push, SSH of another name":  {forge.GitHub, "push", `{"ref":"refs/heads/main","repository":{"full_name":"acme/widgets","clone_url":"https://git.example.com/acme/widgets.git","ssh_url":"git@ssh.example.com:acme/others.git"}}`, "pushed " + widgets + " refs/heads/main - -"},
	"GitHub two URLs renamed":           {forge.GitHub, "repository", `{"action":"renamed","changes":{"repository":{"name":{"from":"gadgets"}}},"repository":{"full_name":"acme/widgets","clone_url":"https://git.example.com/acme/widgets.git","ssh_url":"git@ssh.example.com:acme/widgets.git"}}`, "moved " + widgets + ",ssh://git@ssh.example.com:/acme/widgets.git from acme/gadgets https://git.example.com/acme/gadgets.git,ssh://git@ssh.example.com:/acme/gadgets.git"},
	"GitLab push, two URLs":             {forge.GitLab, "Push Hook", `{"ref":"refs/heads/main","project":{"path_with_namespace":"acme/widgets","git_http_url":"https://git.example.com/acme/widgets.git","git_ssh_url":"git@altssh.example.com:acme/widgets.git"}}`, "pushed " + widgets + ",ssh://git@altssh.example.com:/acme/widgets.git refs/heads/main - -"},
	"GitHub push, hash in upper case":   {forge.GitHub, "push", `{"ref":"refs/heads/main","after":"` + strings.Repeat("AB", 20) + `",` + hubRepo + `}`, "pushed " + widgets + " refs/heads/main - " + strings.Repeat("ab", 20)},
	"GitHub push, SHA-256":              {forge.GitHub, "push", `{"ref":"refs/heads/main","before":"` + strings.Repeat("0", 64) + `","after":"` + strings.Repeat("ab", 32) + `",` + hubRepo + `}`, "pushed " + widgets + " refs/heads/main - " + strings.Repeat("ab", 32)},
	"GitHub push, no hash at all":       {forge.GitHub, "push", `{"ref":"refs/heads/main","before":"--upload-pack","after":"HEAD",` + hubRepo + `}`, "pushed " + widgets + " refs/heads/main - -"},
	"GitHub branch deleted":             {forge.GitHub, "push", `{"ref":"refs/heads/x","before":"` + one + `","after":"` + none + `","deleted":true,` + hubRepo + `}`, "ref_deleted " + widgets + " refs/heads/x " + one + " -"},
	"GitHub annotated tag":              {forge.GitHub, "push", `{"ref":"refs/tags/v1","before":"` + none + `","after":"` + one + `","head_commit":{"id":"` + two + `"},` + hubRepo + `}`, "pushed " + widgets + " refs/tags/v1 - " + two},
	"GitHub tag deleted":                {forge.GitHub, "push", `{"ref":"refs/tags/v1","before":"` + one + `","after":"` + none + `","deleted":true,"head_commit":null,` + hubRepo + `}`, "ref_deleted " + widgets + " refs/tags/v1 - -"},
	"GitHub other ref":                  {forge.GitHub, "push", `{"ref":"refs/pull/1/head","after":"` + one + `",` + hubRepo + `}`, "[no branch or tag that can be watched has changed]"},
	"GitHub ref that is none":           {forge.GitHub, "push", `{"ref":"refs/heads/../x","after":"` + one + `",` + hubRepo + `}`, "[no branch or tag that can be watched has changed]"},
	"GitHub delete":                     {forge.GitHub, "delete", `{"ref":"feature/x","ref_type":"branch",` + hubRepo + `}`, "ref_deleted " + widgets + " refs/heads/feature/x - -"},
	"GitHub create":                     {forge.GitHub, "create", `{"ref":"feature/x","ref_type":"branch",` + hubRepo + `}`, "[event type not of interest]"},
	"GitHub issue":                      {forge.GitHub, "issues", `{"repository":7,"ref":[]}`, "[event type not of interest]"},
	"GitHub repository deleted":         {forge.GitHub, "repository", `{"action":"deleted",` + hubRepo + `}`, "removed " + widgets + " - - -"},
	"GitHub repository archived":        {forge.GitHub, "repository", `{"action":"archived",` + hubRepo + `}`, "archived " + widgets + " - - -"},
	"GitHub repository renamed":         {forge.GitHub, "repository", `{"action":"renamed","changes":{"repository":{"name":{"from":"gadgets"}}},` + hubRepo + `}`, "moved " + widgets + " from acme/gadgets https://git.example.com/acme/gadgets.git"},
	"GitHub renamed in case alone":      {forge.GitHub, "repository", `{"action":"renamed","changes":{"repository":{"name":{"from":"Widgets"}}},` + hubRepo + `}`, "moved " + widgets + " from acme/Widgets https://git.example.com/acme/Widgets.git"},
	"GitHub transferred from a user":    {forge.GitHub, "repository", `{"action":"transferred","changes":{"owner":{"from":{"user":{"login":"ada"}}}},` + hubRepo + `}`, "moved " + widgets + " from ada/widgets https://git.example.com/ada/widgets.git"},
	"GitHub transferred from an org":    {forge.GitHub, "repository", `{"action":"transferred","changes":{"owner":{"from":{"organization":{"login":"initech"}}}},` + hubRepo + `}`, "moved " + widgets + " from initech/widgets https://git.example.com/initech/widgets.git"},
	"GitHub default branch":             {forge.GitHub, "repository", `{"action":"edited","changes":{"default_branch":{"from":"main"}},` + hubRepo + `}`, "default_changed " + widgets + " refs/heads/trunk - -"},
	"GitHub topics":                     {forge.GitHub, "repository", `{"action":"edited","changes":{"topics":{"from":["a"]}},` + hubRepo + `}`, "[nothing that a clone depends on has changed]"},
	"GitHub renamed from a bad name":    {forge.GitHub, "repository", `{"action":"renamed","changes":{"repository":{"name":{"from":"../../etc"}}},` + hubRepo + `}`, "[the repository's name is not a valid path]"},
	"GitHub bad name":                   {forge.GitHub, "push", `{"ref":"refs/heads/main","repository":{"full_name":"acme/../x","clone_url":"https://git.example.com/acme/../x.git"}}`, "[the repository's URL is not a valid clone URL]"},
	"GitHub no repository":              {forge.GitHub, "push", `{"ref":"refs/heads/main"}`, "[the delivery does not contain the repository's URL]"},
	"GitHub credentials in the URL":     {forge.GitHub, "push", `{"ref":"refs/heads/main","repository":{"full_name":"acme/widgets","clone_url":"https://a:b@git.example.com/acme/widgets.git"}}`, "[the repository's URL is not a valid clone URL]"},
	"GitHub another repository's URL":   {forge.GitHub, "push", `{"ref":"refs/heads/main","repository":{"full_name":"acme/widgets","clone_url":"https://git.example.com/acme/gadgets.git"}}`, "[the repository's URL does not end in its name]"},
	"GitHub owner in place of the host": {forge.GitHub, "push", `{"ref":"refs/heads/main","repository":{"full_name":"acme/widgets","clone_url":"https://acme/widgets"}}`, "[the repository's URL does not end in its name]"},
	"GitHub no URL":                     {forge.GitHub, "push", `{"ref":"refs/heads/main","repository":{"full_name":"acme/widgets"}}`, "[the delivery does not contain the repository's URL]"},

	"Gitea push":                    {forge.Gitea, "push", `{"ref":"refs/heads/main","before":"` + one + `","after":"` + two + `",` + hubRepo + `}`, "pushed " + widgets + " refs/heads/main " + one + " " + two},
	"Forgejo push":                  {forge.Forgejo, "push", `{"ref":"refs/heads/main","before":"` + one + `","after":"` + two + `",` + hubRepo + `}`, "pushed " + widgets + " refs/heads/main " + one + " " + two},
	"Gitea below a path":            {forge.Gitea, "push", `{"ref":"refs/heads/main","repository":{"full_name":"acme/widgets","clone_url":"http://example.com/git/acme/widgets.git"}}`, "pushed acme/widgets http://example.com/git/acme/widgets.git refs/heads/main - -"},
	"Gitea branch deleted":          {forge.Gitea, "delete", `{"ref":"x","ref_type":"branch",` + hubRepo + `}`, "ref_deleted " + widgets + " refs/heads/x - -"},
	"Gitea tag deleted, as a push":  {forge.Gitea, "push", `{"ref":"refs/tags/v1","before":"` + one + `","after":"` + none + `",` + hubRepo + `}`, "ref_deleted " + widgets + " refs/tags/v1 - -"},
	"Forgejo repository deleted":    {forge.Forgejo, "repository", `{"action":"deleted",` + hubRepo + `}`, "removed " + widgets + " - - -"},
	"Gitea repository created":      {forge.Gitea, "repository", `{"action":"created",` + hubRepo + `}`, "[nothing that a clone depends on has changed]"},
	"Gitea branch of an odd name":   {forge.Gitea, "delete", `{"ref":"refs/x","ref_type":"branch",` + hubRepo + `}`, "ref_deleted " + widgets + " refs/heads/refs/x - -"},
	"Gitea deletion of who knows":   {forge.Gitea, "delete", `{"ref":"x","ref_type":"commit",` + hubRepo + `}`, "[no branch or tag that can be watched has changed]"},
	"Gitea event of another header": {forge.Gitea, "", `{}`, "[event type not of interest]"},

	"GitLab push":                      {forge.GitLab, "Push Hook", `{"object_kind":"push","ref":"refs/heads/main","before":"` + one + `","after":"` + two + `","checkout_sha":"` + two + `",` + labRepo + `}`, "pushed " + deep + " refs/heads/main " + one + " " + two},
	"GitLab branch deleted":            {forge.GitLab, "Push Hook", `{"object_kind":"push","ref":"refs/heads/x","before":"` + one + `","after":"` + none + `","checkout_sha":null,` + labRepo + `}`, "ref_deleted " + deep + " refs/heads/x " + one + " -"},
	"GitLab annotated tag":             {forge.GitLab, "Tag Push Hook", `{"object_kind":"tag_push","ref":"refs/tags/v1","before":"` + none + `","after":"` + one + `","checkout_sha":"` + two + `",` + labRepo + `}`, "pushed " + deep + " refs/tags/v1 - " + two},
	"GitLab system push":               {forge.GitLab, "System Hook", `{"event_name":"push","ref":"refs/heads/main","before":"` + one + `","after":"` + two + `",` + labRepo + `}`, "pushed " + deep + " refs/heads/main " + one + " " + two},
	"GitLab push to several":           {forge.GitLab, "System Hook", `{"event_name":"repository_update","changes":[{"ref":"refs/heads/a","before":"` + none + `","after":"` + one + `"},{"ref":"refs/tags/v1","after":"` + two + `"},{"ref":"refs/heads/b","before":"` + one + `","after":"` + none + `"}],` + labRepo + `}`, "pushed " + deep + " refs/heads/a - " + one + "\npushed " + deep + " refs/tags/v1 - -\nref_deleted " + deep + " refs/heads/b " + one + " -"},
	"GitLab web URL alone":             {forge.GitLab, "Push Hook", `{"object_kind":"push","ref":"refs/heads/main","project":{"path_with_namespace":"acme/widgets","web_url":"https://git.example.com/acme/widgets"}}`, "pushed " + widgets + " refs/heads/main - -"},
	"GitLab project removed, no host":  {forge.GitLab, "System Hook", `{"event_name":"project_destroy","path_with_namespace":"acme/widgets"}`, "[the delivery does not contain the repository's URL]"},
	"GitLab merge request, system":     {forge.GitLab, "System Hook", `{"object_kind":"merge_request","changes":{"updated_at":{}},"project":7}`, "[event type not of interest]"},
	"GitLab note":                      {forge.GitLab, "Note Hook", `{"project":7}`, "[event type not of interest]"},
	"Bitbucket Cloud push to several":  {forge.BitbucketCloud, "repo:push", `{"repository":{"full_name":"acme/widgets"},"push":{"changes":[{"old":{"type":"branch","name":"main","target":{"hash":"` + one + `"}},"new":{"type":"branch","name":"main","target":{"hash":"` + two + `"}}},{"old":null,"new":{"type":"tag","name":"v1","target":{"hash":"` + two + `"}}},{"old":{"type":"branch","name":"x","target":{"hash":"` + one + `"}},"new":null},{"old":null,"new":null},{"new":{"type":"bookmark","name":"b"}}]}}`, "pushed " + cloud + " refs/heads/main " + one + " " + two + "\npushed " + cloud + " refs/tags/v1 - " + two + "\nref_deleted " + cloud + " refs/heads/x " + one + " -"},
	"Bitbucket Cloud renamed":          {forge.BitbucketCloud, "repo:updated", `{"repository":{"full_name":"acme/widgets"},"changes":{"full_name":{"old":"acme/gadgets","new":"acme/widgets"}}}`, "moved " + cloud + " from acme/gadgets https://bitbucket.org/acme/gadgets.git"},
	"Bitbucket Cloud described":        {forge.BitbucketCloud, "repo:updated", `{"repository":{"full_name":"acme/widgets"},"changes":{"description":{"old":"a","new":"b"}}}`, "[nothing that a clone depends on has changed]"},
	"Bitbucket Cloud deleted":          {forge.BitbucketCloud, "repo:deleted", `{"repository":{"full_name":"acme/widgets"}}`, "removed " + cloud + " - - -"},
	"Bitbucket Cloud transferred":      {forge.BitbucketCloud, "repo:transfer", `{"repository":{"full_name":"acme/widgets"}}`, "[nothing that a clone depends on has changed]"},
	"Bitbucket Cloud fork":             {forge.BitbucketCloud, "repo:fork", `{}`, "[event type not of interest]"},
	"Bitbucket Cloud host in the name": {forge.BitbucketCloud, "repo:deleted", `{"repository":{"full_name":"x@evil.example/acme/widgets"}}`, "removed  https://bitbucket.org/x@evil.example/acme/widgets.git - - -"},

	"Bitbucket DC ping":                    {forge.BitbucketDC, "diagnostics:ping", `{"test":true}`, "ping"},
	"Bitbucket DC push to several":         {forge.BitbucketDC, "repo:refs_changed", `{` + dcRepo + `,"changes":[{"ref":{"id":"refs/heads/main"},"fromHash":"` + one + `","toHash":"` + two + `","type":"UPDATE"},{"ref":{"id":"refs/tags/v1"},"fromHash":"` + none + `","toHash":"` + two + `","type":"ADD"},{"ref":{"id":"refs/heads/x"},"fromHash":"` + one + `","toHash":"` + none + `","type":"DELETE"}]}`, "pushed " + dc + " refs/heads/main " + one + " " + two + "\npushed " + dc + " refs/tags/v1 - -\nref_deleted " + dc + " refs/heads/x " + one + " -"},
	"Bitbucket DC no links":                {forge.BitbucketDC, "repo:refs_changed", `{"repository":{"slug":"widgets","project":{"key":"ACME"}},"changes":[{"ref":{"id":"refs/heads/main"},"type":"UPDATE"}]}`, "[the delivery does not contain the repository's URL]"},
	"Bitbucket DC mirror":                  {forge.BitbucketDC, "mirror:repo_synchronized", `{` + dcRepo + `,"mirrorServer":{"id":"B1"},"syncType":"INCREMENTAL","refLimitExceeded":false,"changes":[{"ref":{"id":"refs/heads/main"},"fromHash":"` + one + `","toHash":"` + two + `","type":"UPDATE"}]}`, "pushed " + dc + " refs/heads/main " + one + " " + two},
	"Bitbucket DC mirror, many refs":       {forge.BitbucketDC, "mirror:repo_synchronized", `{` + dcRepo + `,"syncType":"SNAPSHOT","refLimitExceeded":true}`, "pushed " + dc + " - - -"},
	"Bitbucket DC user's own":              {forge.BitbucketDC, "repo:refs_changed", `{"repository":{"slug":"w","project":{"key":"~ADA","type":"PERSONAL"},"links":{"self":[{"href":"https://git.example.com/users/ada/repos/w/browse"}]}},"changes":[{"ref":{"id":"refs/heads/main"},"type":"UPDATE"}]}`, "pushed ~ADA/w https://git.example.com/scm/~ada/w.git refs/heads/main - -"},
	"Bitbucket DC user in links":           {forge.BitbucketDC, "repo:refs_changed", `{"repository":{"slug":"w","project":{"key":"A"},"links":{"clone":[{"href":"ssh://git@git.example.com:7999/a/w.git","name":"ssh"},{"href":"https://admin@git.example.com/scm/a/w.git","name":"http"}]}},"changes":[{"ref":{"id":"refs/heads/main"},"type":"UPDATE"}]}`, "pushed A/w https://git.example.com/scm/a/w.git,ssh://git@git.example.com:7999/a/w.git refs/heads/main - -"},
	"Bitbucket DC renamed":                 {forge.BitbucketDC, "repo:modified", `{"old":{"slug":"gadgets","project":{"key":"ACME"}},"new":{"slug":"widgets","project":{"key":"ACME"},"links":{"self":[{"href":"https://git.example.com/bitbucket/projects/ACME/repos/widgets/browse"}]}}}`, "moved " + dc + " from ACME/gadgets https://git.example.com/bitbucket/scm/acme/gadgets.git"},
	"Bitbucket DC deletion without hashes": {forge.BitbucketDC, "repo:refs_changed", `{` + dcRepo + `,"changes":[{"ref":{"id":"refs/heads/x"},"type":"DELETE"}]}`, "ref_deleted " + dc + " refs/heads/x - -"},
	"Bitbucket DC described":               {forge.BitbucketDC, "repo:modified", `{"old":{"slug":"widgets","project":{"key":"ACME"}},"new":{"slug":"widgets","project":{"key":"ACME"},"links":{"self":[{"href":"https://git.example.com/projects/ACME"}]}}}`, "[nothing that a clone depends on has changed]"},
	"Bitbucket DC pull request":            {forge.BitbucketDC, "pr:opened", `{}`, "[event type not of interest]"},

	"Standard ping":                     {forge.Standard, "", `{"type":"ping"}`, "ping"},
	"Standard push":                     {forge.Standard, "", `{"type":"pushed","data":{` + standard + `,"ref":"main","before":"` + one + `","after":"` + two + `"}}`, "pushed " + widgets + " refs/heads/main " + one + " " + two},
	"Standard push, no ref":             {forge.Standard, "", `{"type":"pushed","data":{` + standard + `,"after":"` + two + `"}}`, "pushed " + widgets + " - - " + two},
	"Standard push, no repo":            {forge.Standard, "", `{"type":"pushed","data":{"url":"https://git.example.com/acme/widgets.git","ref":"refs/tags/v1"}}`, "pushed " + widgets + " refs/tags/v1 - -"},
	"Standard push over SSH":            {forge.Standard, "", `{"type":"pushed","data":{"url":"ssh://git@git.example.com/acme/widgets.git"}}`, "pushed acme/widgets ssh://git@git.example.com/acme/widgets.git - - -"},
	"Standard ref deleted":              {forge.Standard, "", `{"type":"ref_deleted","data":{` + standard + `,"ref":"x"}}`, "ref_deleted " + widgets + " refs/heads/x - -"},
	"Standard no ref deleted":           {forge.Standard, "", `{"type":"ref_deleted","data":{` + standard + `}}`, "[no branch or tag that can be watched has changed]"},
	"Standard removed":                  {forge.Standard, "", `{"type":"removed","data":{` + standard + `}}`, "removed " + widgets + " - - -"},
	"Standard archived":                 {forge.Standard, "", `{"type":"archived","data":{` + standard + `}}`, "archived " + widgets + " - - -"},
	"Standard default changed":          {forge.Standard, "", `{"type":"default_changed","data":{` + standard + `,"ref":"trunk"}}`, "default_changed " + widgets + " refs/heads/trunk - -"},
	"Standard default, unknown":         {forge.Standard, "", `{"type":"default_changed","data":{` + standard + `}}`, "default_changed " + widgets + " - - -"},
	"Standard moved":                    {forge.Standard, "", `{"type":"moved","data":{` + standard + `,"from":"acme/gadgets"}}`, "moved " + widgets + " from acme/gadgets https://git.example.com/acme/gadgets.git"},
	"Standard moved, both URLs":         {forge.Standard, "", `{"type":"moved","data":{` + standard + `,"from":"acme/gadgets","from_url":"https://git.example.com/old/acme/gadgets"}}`, "moved " + widgets + " from acme/gadgets https://git.example.com/old/acme/gadgets"},
	"Standard moved below itself":       {forge.Standard, "", `{"type":"moved","data":{"url":"https://git.example.com/acme/widgets/sub.git","from":"acme/widgets"}}`, "[the new path is above or below the old one]"},
	"Standard moved from another's URL": {forge.Standard, "", `{"type":"moved","data":{` + standard + `,"from":"acme/gadgets","from_url":"https://git.example.com/acme/other.git"}}`, "moved " + widgets + " from acme/gadgets https://git.example.com/acme/gadgets.git"},
	"our own push":                      {forge.Standard, "", `{"specversion":"1.0","id":"1","source":"/x","type":"lockstep.change.pushed.v1","data":{` + standard + `,"ref":"refs/heads/main","app":"docs","credential":"ci","force":true}}`, "pushed " + widgets + " refs/heads/main - -"},
	"our own move":                      {forge.Standard, "", `{"specversion":"1.0","id":"1","source":"/x","type":"lockstep.change.moved.v1","data":{"repo":"acme/gadgets","to":"acme/widgets","url":"https://git.example.com/acme/widgets.git"}}`, "moved " + widgets + " from acme/gadgets https://git.example.com/acme/gadgets.git"},
	"our own removal of a ref":          {forge.Standard, "", `{"specversion":"1.0","id":"1","source":"/x","type":"lockstep.change.removed.v1","data":{` + standard + `,"ref":"refs/heads/x"}}`, "ref_deleted " + widgets + " refs/heads/x - -"},
	"our own poll":                      {forge.Standard, "", `{"type":"lockstep.change.due.v1","data":{` + standard + `}}`, "[event type not of interest]"},
}

func TestReceive(t *testing.T) {
	for name, p := range payloads {
		t.Run(name, func(t *testing.T) {
			src := source(p.kind)
			d, err := forge.Receive(src, signed(src, p.event, []byte(p.body)), []byte(p.body), now)
			if err != nil {
				t.Fatal(err)
			}
			got := summary(d)
			if d.Ignored != "" {
				got = "[" + d.Ignored + "]"
			}
			if got != p.want {
				t.Errorf("got  %s\nwant %s", got, p.want)
			}
			if d.Source != "hub" || d.ID != "delivery-1" {
				t.Errorf("source %q, id %q", d.Source, d.ID)
			}
			checkSound(t, d)
			stored, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			var back forge.Delivery
			if err := json.Unmarshal(stored, &back); err != nil || summary(back) != summary(d) {
				t.Errorf("JSON round trip: %s, %v", summary(back), err)
			}
		})
	}
}

func TestGitLabServerURL(t *testing.T) {
	body := []byte(`{"event_name":"project_rename","path_with_namespace":"acme/widgets","old_path_with_namespace":"acme/gadgets"}`)
	const moved = "moved " + widgets + " from acme/gadgets https://git.example.com/acme/gadgets.git"
	for name, tc := range map[string]struct {
		header, want string
		urls         []string
	}{
		"a header":          {header: "https://git.example.com", want: moved},
		"the source's urls": {urls: []string{"https://git.example.com/acme/", "https://git.example.com/b/"}, want: moved},
		"a header that matches one of several urls": {header: "https://git.example.com", urls: []string{"https://other.example.com/", "https://git.example.com/"}, want: moved},
		"several urls without a header":             {urls: []string{"https://other.example.com/", "https://git.example.com/"}, want: "-"},
		"a header that matches no url":              {header: "https://git.example.com", urls: []string{"https://other.example.com/"}, want: "-"},
		"a header that is no server":                {header: "javascript:alert(1)", want: "-"},
		"a header with a user in it":                {header: "https://a:b@git.example.com", want: moved},
		"the old URL is not allowed":                {header: "https://git.example.com", urls: []string{"https://git.example.com/acme/widgets.git"}, want: "-"},
	} {
		src := source(forge.GitLab)
		src.URLs = tc.urls
		header := signed(src, "System Hook", body)
		header.Set("X-Gitlab-Instance", tc.header)
		d, err := forge.Receive(src, header, body, now)
		if err != nil || summary(d) != tc.want || d.Event != "project_rename" {
			t.Errorf("%s: %s, event %q, %v; want %s", name, summary(d), d.Event, err, tc.want)
		}
	}
}

func TestSourceIsLimitedToItsURLs(t *testing.T) {
	push := func(remote string) string {
		u, err := url.Parse(remote)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"ref":"refs/heads/main","repository":{"full_name":%q,"clone_url":%q}}`, strings.TrimSuffix(strings.Trim(u.Path, "/"), ".git"), remote)
	}
	src := source(forge.GitHub)
	src.URLs = []string{"https://Git.Example.com/acme/", "https://other.example.com:443/one/repo.git"}
	for remote, want := range map[string]bool{
		"https://git.example.com/acme/widgets.git":      true,
		"https://GIT.example.com:443/acme/widgets.git":  true,
		"https://other.example.com/one/repo.git":        true,
		"http://git.example.com/acme/widgets.git":       false,
		"https://git.example.com/acmeevil/widgets.git":  false,
		"https://git.example.com/other/widgets.git":     false,
		"https://git.example.com:8443/acme/widgets.git": false,
		"https://git.example.com.evil/acme/widgets.git": false,
		"https://other.example.com/one/repo2.git":       false,
		"https://evil.example/acme/widgets.git":         false,
	} {
		body := []byte(push(remote))
		d, err := forge.Receive(src, signed(src, "push", body), body, now)
		if err != nil || (len(d.Events) == 1) != want {
			t.Errorf("%s: %d events, %q, %v; want %v", remote, len(d.Events), d.Ignored, err, want)
		}
		if !want && d.Ignored != "the repository's URL is not among this source's urls" {
			t.Errorf("%s: %q", remote, d.Ignored)
		}
	}
}

func TestFormEncodedBody(t *testing.T) {
	p := payloads["GitHub push"]
	body := []byte(url.Values{"payload": {p.body}}.Encode())
	src := source(forge.GitHub)
	header := signed(src, "push", body)
	header.Set("Content-Type", "application/x-www-form-urlencoded")
	d, err := forge.Receive(src, header, body, now)
	if err != nil || summary(d) != p.want {
		t.Errorf("%s, %v", summary(d), err)
	}
}

func TestDeliveryWithTooManyRefs(t *testing.T) {
	for refs, want := range map[int]int{999: 999, 1000: 1000, 5000: 1000} {
		var changes []string
		for i := range refs {
			changes = append(changes, fmt.Sprintf(`{"ref":{"id":"refs/heads/b%d"},"toHash":%q,"type":"ADD"}`, i, one))
		}
		body := []byte(`{` + dcRepo + `,"changes":[` + strings.Join(changes, ",") + `]}`)
		src := source(forge.BitbucketDC)
		d, err := forge.Receive(src, signed(src, "repo:refs_changed", body), body, now)
		if err != nil || len(d.Events) != want {
			t.Fatalf("%d refs: %d events, %v", refs, len(d.Events), err)
		}
		last := d.Events[len(d.Events)-1]
		if last.Kind != forge.Pushed || last.Ref.IsZero() != (refs > 999) {
			t.Errorf("%d refs: the last event is %s of %q", refs, last.Kind, last.Ref)
		}
	}
}

func TestInvalidBodies(t *testing.T) {
	for name, tc := range map[string]struct {
		kind        forge.Kind
		event, body string
	}{
		"nothing":          {forge.GitHub, "push", ``},
		"no JSON":          {forge.Gitea, "push", `<html>` + secret},
		"cut short":        {forge.GitLab, "Push Hook", `{"ref":"refs/heads/`},
		"another type":     {forge.BitbucketDC, "repo:refs_changed", `{"changes":"` + secret + `"}`},
		"a list":           {forge.Standard, "", `[]`},
		"too deep":         {forge.GitHub, "push", strings.Repeat("[", 20000)},
		"more than one":    {forge.BitbucketCloud, "repo:push", `{}{}`},
		"changes are text": {forge.GitHub, "repository", `{"action":"renamed","changes":"` + secret + `"}`},
	} {
		src := source(tc.kind)
		_, err := forge.Receive(src, signed(src, tc.event, []byte(tc.body)), []byte(tc.body), now)
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeliveryIDs(t *testing.T) {
	src := source(forge.GitHub)
	for sent, want := range map[string]string{
		"":                       "",
		"72d3162e-cc78-11e3":     "72d3162e-cc78-11e3",
		strings.Repeat("x", 200): strings.Repeat("x", 200),
	} {
		header := signed(src, "ping", nil)
		header.Set("X-GitHub-Delivery", sent)
		if d, err := forge.Receive(src, header, nil, now); err != nil || d.ID != want {
			t.Errorf("%q: %q, %v", sent, d.ID, err)
		}
	}
	seen := map[string]bool{}
	for _, odd := range []string{strings.Repeat("x", 201), strings.Repeat("x", 202), "a\tb", "é"} {
		header := http.Header{"X-Github-Delivery": {odd}, "X-Github-Event": {strings.Repeat("e", 101)}, "X-Hub-Signature-256": {"sha256=" + hexMAC(secret, nil)}}
		d, err := forge.Receive(src, header, nil, now)
		if err != nil || seen[d.ID] || !strings.HasPrefix(d.ID, "sha256:") || d.Event != "" {
			t.Errorf("%q: %q, event %q, %v", odd, d.ID, d.Event, err)
		}
		seen[d.ID] = true
	}
}

func TestKinds(t *testing.T) {
	for kind := range headersOf {
		if got, err := forge.ParseKind(string(kind)); err != nil || got != kind {
			t.Errorf("%s: %q, %v", kind, got, err)
		}
	}
	for _, text := range []string{"", "GitHub", "gogs", "github "} {
		if _, err := forge.ParseKind(text); err == nil {
			t.Errorf("ParseKind accepted %q", text)
		}
	}
}
