package controllers

import (
	"context"
	"errors"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/auth"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// WorkloadIdentityFailedReason is the reason of a member for which no access was granted.
const WorkloadIdentityFailedReason = "WorkloadIdentityFailed"

// workloadIdentity returns what a member with a configMapRef is reached with, in the way of Flux. This is all there is of
// it; it brings the libraries of three clouds into the program, which are a fifth of its size.
func (r *MemberReconciler) workloadIdentity(ctx context.Context, m *subject, k *kubeconfig) (*rest.Config, *problem) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout())
	defer cancel()
	config, err := r.WorkloadIdentity(ctx, meta.KubeConfigReference{ConfigMapRef: m.configMap}, m.object.GetNamespace(), r.Client)
	switch {
	case err == nil:
		return sanitize(ctx, config, r.KubeConfigOptions), nil
	case apierrors.IsNotFound(err):
		return nil, &problem{reason: KubeconfigNotFoundReason, message: k.from + " or the service account that it names is missing: create it"}
	case errors.Is(err, auth.ErrObjectLevelWorkloadIdentityNotEnabled):
		return nil, &problem{reason: WorkloadIdentityFailedReason, message: k.from + " names a service account, which needs --feature-gates=ObjectLevelWorkloadIdentity=true, here and in Flux"}
	}
	// What a cloud says has the numbers of requests in it, and would be another message each time.
	ctrl.LoggerFrom(ctx).Error(err, "no access by workload identity", "configMap", m.configMap.Name)
	return nil, &problem{reason: WorkloadIdentityFailedReason, message: k.from + " gives no access: check its provider, cluster and address; the log of fleet-controller has what the provider says"}
}
