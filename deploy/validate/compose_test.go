package validate

import (
	"slices"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// compose loads the project like docker compose.
func compose(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../../compose.yaml"}, cli.WithWorkingDirectory("../.."))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestComposeFile(t *testing.T) {
	project := compose(t)
	if names := project.ServiceNames(); !slices.Equal(names, []string{"receiver", "redis", "worker-1", "worker-2"}) {
		t.Errorf("services %q", names)
	}
	for name, service := range project.Services {
		if service.HealthCheck == nil || len(service.HealthCheck.Test) < 2 {
			t.Errorf("%s has no healthcheck", name)
		}
		if service.HealthCheck != nil && service.HealthCheck.StartInterval != nil {
			t.Errorf("%s: Podman 4 and Docker before 25 refuse the start interval", name)
		}
		if name == "redis" {
			continue
		}
		if got := []string(service.HealthCheck.Test); !slices.Equal(got, []string{"CMD", "/lockstep", "healthcheck"}) {
			t.Errorf("%s: healthcheck %q", name, got)
		}
		if service.StopGracePeriod == nil || time.Duration(*service.StopGracePeriod) < 40*time.Second {
			t.Errorf("%s has a grace period of %v, want 40 s", name, service.StopGracePeriod)
		}
		if !service.ReadOnly || service.Privileged || !slices.Equal(service.CapDrop, []string{"ALL"}) || !slices.Contains(service.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s has unnecessary privileges", name)
		}
		if depends := service.DependsOn["redis"]; depends.Condition != types.ServiceConditionHealthy {
			t.Errorf("%s does not wait for Redis", name)
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is reachable from other machines", name, port.Published)
			}
		}
	}
	if repos := project.Services["worker-1"].Volumes; !slices.EqualFunc(repos, project.Services["worker-2"].Volumes, func(a, b types.ServiceVolumeConfig) bool { return a.Source == b.Source && a.Target == b.Target }) {
		t.Error("the workers have different volumes")
	}
}
