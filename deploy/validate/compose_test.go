package validate

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// compose loads a project of the repository like docker compose.
func compose(t *testing.T, file string) *types.Project {
	t.Helper()
	path := filepath.Join("../..", file)
	options, err := cli.NewProjectOptions([]string{path}, cli.WithWorkingDirectory(filepath.Dir(path)))
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
	project := compose(t, "compose.yaml")
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

func TestCellsComposeFile(t *testing.T) {
	project := compose(t, "deploy/cells/compose.yaml")
	volumes, masters := map[string]string{}, 0
	for name, service := range project.Services {
		if strings.HasPrefix(name, "redis-") {
			masters++
			if !slices.Contains(service.Command, "--cluster-require-full-coverage") {
				t.Errorf("%s stops the cluster with one master", name)
			}
			continue
		}
		variable := func(name string) string {
			if value := service.Environment[name]; value != nil {
				return *value
			}
			return ""
		}
		if service.Image == "lockstep:local" && (variable("LOCKSTEP_CELLS_PREFIX") != "lockstep:{dir}:" || !service.ReadOnly || !slices.Equal(service.CapDrop, []string{"ALL"})) {
			t.Errorf("%s has the directory %q, or unnecessary privileges", name, variable("LOCKSTEP_CELLS_PREFIX"))
		}
		for _, volume := range service.Volumes {
			if volume.Target == "/repos" {
				if former := volumes[volume.Source]; former != "" {
					t.Errorf("the cells %s and %s share a volume", former, variable("LOCKSTEP_CELL"))
				}
				volumes[volume.Source] = variable("LOCKSTEP_CELL")
			}
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is reachable from other machines", name, port.Published)
			}
		}
	}
	if masters != 3 || volumes["repos-eu-1"] != "eu-1" || volumes["repos-eu-2"] != "eu-2" {
		t.Errorf("%d masters, cells by volume %v", masters, volumes)
	}
	for _, name := range []string{"eu-1", "eu-2", "receiver"} {
		if service := project.Services[name]; service.NetworkMode != "service:machine" || len(service.Networks) > 0 {
			t.Errorf("%s cannot ask the readers of both cells over loopback: %q", name, service.NetworkMode)
		}
	}
	for name, service := range project.Services {
		for other := range service.DependsOn {
			if _, ok := project.Services[other]; !ok {
				t.Errorf("%s depends on %s, which does not exist", name, other)
			}
		}
	}
}
